//! Ports that nothing else takes for as long as a control plane needs them.
//!
//! Binding port 0 and closing it again would give ports out of the range that the kernel also uses for outgoing
//! connections: a stopped API server could then find its own port taken when it comes back. So ports come from below
//! that range, and a socket name per port keeps the control planes of one machine from choosing the same one, which
//! would be worse than a failure: one's API server would find the other's etcd healthy. Abstract socket names have
//! the scope that ports have (the network namespace) and vanish with the process, so there is nothing to clean up.

use std::{
    net::Ipv4Addr,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use anyhow::{Result, bail};
use rand::RngExt;
use tokio::net::TcpSocket;

const PORTS: std::ops::Range<u16> = 20_000..32_000;
const ATTEMPTS: u32 = 1_000;

/// A port that belongs to this process until the value is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let number = rand::rng().random_range(PORTS);
            let name = SocketAddr::from_abstract_name(format!("claimkeeper-testbed-port-{number}"))?;
            let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
            if is_free(number)? {
                return Ok(Self { number, _claim: claim });
            }
        }
        bail!("no free port between {} and {} after {ATTEMPTS} attempts", PORTS.start, PORTS.end)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Whether nobody listens on the port. The socket that finds out never listens itself: a child that another thread is
/// just starting holds a copy of it until it executes its program, and a copy that listens would keep the port taken.
fn is_free(number: u16) -> Result<bool> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    Ok(socket.bind((Ipv4Addr::LOCALHOST, number).into()).is_ok())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        net::TcpListener,
        process::Command,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn ports_that_are_held_at_the_same_time_differ_and_can_be_bound() {
        let ports = (0..50).map(|_| Port::reserve().unwrap()).collect::<Vec<_>>();
        assert_eq!(ports.iter().map(Port::number).collect::<HashSet<_>>().len(), 50);
        for port in &ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        }
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_not_free() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(taken.local_addr().unwrap().port()).unwrap());
    }

    #[test]
    fn ports_can_be_bound_at_once_while_other_threads_start_programs() {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
            let refused = (0..2_000).find_map(|_| {
                let port = Port::reserve().unwrap();
                TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).err()
            });
            over.store(true, Ordering::Relaxed);
            assert!(refused.is_none(), "{refused:?}");
        });
    }
}

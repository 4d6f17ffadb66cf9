//! Ports that nothing else takes for as long as a control plane needs them.
//!
//! Binding port 0 and closing it again would give ports out of the range that the kernel also uses for outgoing
//! connections: a stopped API server could then find its own port taken when it comes back. So ports come from below
//! that range, and a socket name per port keeps the control planes of one machine from choosing the same one, which
//! would be worse than a failure: one's API server would find the other's etcd healthy. Abstract socket names have
//! the scope that ports have (the network namespace) and vanish with the process, so there is nothing to clean up.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use anyhow::{Result, bail};
use rand::RngExt;

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
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        bail!("no free port between {} and {} after {ATTEMPTS} attempts", PORTS.start, PORTS.end)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ports_that_are_held_at_the_same_time_differ_and_can_be_bound() {
        let ports = (0..50).map(|_| Port::reserve().unwrap()).collect::<Vec<_>>();
        assert_eq!(ports.iter().map(Port::number).collect::<HashSet<_>>().len(), 50);
        for port in &ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        }
    }
}

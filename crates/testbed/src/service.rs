//! What a Service does for its clients, where there is no kube-proxy: one address for several replicas, of which only those get
//! connections that were ready a while ago.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

/// How often a replica is asked whether it is ready.
const PAUSE: Duration = Duration::from_millis(100);

/// One address. It ends with its owner, and so do all connections through it.
pub struct Service {
    address: SocketAddr,
    lag: Duration,
    replicas: Arc<Mutex<Vec<Arc<Replica>>>>,
    tasks: JoinSet<()>,
}

struct Replica {
    address: SocketAddr,
    known_as_ready: AtomicBool,
}

impl Service {
    /// Without replicas yet. What becomes ready or unready is known that much later, as endpoints take time to get around.
    pub async fn start(lag: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, replicas) = (listener.local_addr()?, Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(forward(listener, Arc::clone(&replicas)));
        Ok(Self { address, lag, replicas, tasks })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many replicas get connections now.
    #[must_use]
    pub fn ready(&self) -> usize {
        let Ok(replicas) = self.replicas.lock() else { return 0 };
        replicas.iter().filter(|replica| replica.known_as_ready.load(Ordering::Relaxed)).count()
    }

    /// A replica that may be connected to while `ready` says so.
    pub fn add<F>(&mut self, address: SocketAddr, ready: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = bool> + Send,
    {
        let replica = Arc::new(Replica { address, known_as_ready: AtomicBool::new(false) });
        if let Ok(mut replicas) = self.replicas.lock() {
            replicas.push(Arc::clone(&replica));
        }
        let lag = self.lag;
        self.tasks.spawn(async move {
            loop {
                let now = ready().await;
                if now != replica.known_as_ready.load(Ordering::Relaxed) {
                    sleep(lag).await;
                    replica.known_as_ready.store(now, Ordering::Relaxed);
                }
                sleep(PAUSE).await;
            }
        });
    }
}

async fn forward(listener: TcpListener, replicas: Arc<Mutex<Vec<Arc<Replica>>>>) {
    let turn = AtomicUsize::new(0);
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let ready: Vec<SocketAddr> = match replicas.lock() {
            Ok(replicas) => {
                let ready = replicas.iter().filter(|replica| replica.known_as_ready.load(Ordering::Relaxed));
                ready.map(|replica| replica.address).collect()
            }
            Err(_) => return,
        };
        let chosen = ready.get(turn.fetch_add(1, Ordering::Relaxed) % ready.len().max(1)).copied();
        connections.spawn(async move {
            // A connection that cannot be made, or breaks, is closed: all that a client sees of it at a Service, too.
            if let Some(address) = chosen
                && let Ok(mut replica) = TcpStream::connect(address).await
            {
                let _ = copy_bidirectional(&mut client, &mut replica).await;
            }
        });
    }
}

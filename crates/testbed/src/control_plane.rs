//! A running control plane, owned: who holds it may also stop, kill, pause and restart its parts.

use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::{
    Cluster, Component, Options,
    binaries::Binaries,
    flags::Layout,
    image::{BUSYBOX, Image},
    node::{self, RealNode, RealNodes},
    probe::Probe,
    process::{ComponentFailed, Launch, Process},
    provisioner, rights,
};

/// Generous, because a machine that also compiles can be ten times slower than an idle one; failures are noticed at once.
const READY_DEADLINE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Ports are only taken by strangers, so a second conflict in a row is already unlikely.
const START_ATTEMPTS: u32 = 3;

/// A Kubernetes control plane of our own. It ends, and its directory goes, when this value is dropped or the process dies.
#[derive(Debug)]
pub struct ControlPlane {
    cluster: Cluster,
    // Declared in the order in which they must end: the provisioner before the processes, these before their directory.
    provisioner: Option<AbortOnDrop>,
    processes: Mutex<BTreeMap<Component, Process>>,
    launches: Vec<Launch>,
    layout: Layout,
    nodes: Option<RealNodes>,
    _directory: RunDirectory,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Err(error) = rights::collect_at_end(self.cluster.directory()) {
            eprintln!("what was asked of the control plane cannot be told: {error:#}");
        }
    }
}

impl ControlPlane {
    /// Starts a control plane and returns when everything the options ask for is ready, nodes included.
    pub async fn start(options: Options) -> Result<Self> {
        options.check()?;
        let binaries = tokio::task::spawn_blocking(Binaries::get).await??;
        for attempt in 1.. {
            match Self::try_start(&options, &binaries).await {
                Err(error)
                    if attempt < START_ATTEMPTS
                        && error.downcast_ref().is_some_and(ComponentFailed::is_port_conflict) => {}
                outcome => return outcome,
            }
        }
        bail!("no attempt to start a control plane was made")
    }

    async fn try_start(options: &Options, binaries: &Binaries) -> Result<Self> {
        let directory = RunDirectory::create(options)?;
        let layout = Layout::create(&directory.path, options)?;
        let has_real_nodes = options.real_node_count() > 0;
        let nodes = if has_real_nodes { Some(RealNodes::create(&layout, binaries).await?) } else { None };
        let cluster = Cluster::describe(&layout, binaries, nodes.as_ref())?;
        let mut control_plane = Self {
            cluster,
            provisioner: None,
            processes: Mutex::default(),
            launches: layout.launches(options, binaries, nodes.as_ref()),
            layout,
            nodes,
            _directory: directory,
        };
        control_plane.start_everything().await?;
        control_plane.furnish(options).await?;
        Ok(control_plane)
    }

    /// etcd and the API server start together (the API server waits for its store by itself); the others would only
    /// slow it down, since nothing of theirs works before it.
    async fn start_everything(&self) -> Result<()> {
        let (core, others): (Vec<&Launch>, Vec<&Launch>) = self.launches.iter().partition(|launch| {
            matches!(launch.component, Component::Etcd | Component::ApiServer | Component::Containerd(_))
        });
        self.start_group(&core).await?;
        if self.nodes.is_some() {
            // Before the kubelets, which take no pods until they have their sandboxes' image.
            let busybox = node::busybox()?;
            self.cluster.import_image(&Image::pause(&busybox)).await?;
            self.cluster.import_image(&Image::busybox(BUSYBOX, &busybox)?).await?;
        }
        self.start_group(&others).await
    }

    async fn start_group(&self, group: &[&Launch]) -> Result<()> {
        for launch in group {
            self.processes.lock().insert(launch.component, Process::start(launch)?);
        }
        for launch in group {
            self.wait_until_ready(launch.component).await?;
        }
        Ok(())
    }

    /// The nodes, classes and the provisioner, which are objects and tasks rather than processes.
    async fn furnish(&mut self, options: &Options) -> Result<()> {
        for name in options.kwok_nodes() {
            self.cluster.add_node(&name, &[]).await?;
        }
        if options.provisioner {
            let client = self.cluster.client(&self.layout.file("kubeconfigs/provisioner.kubeconfig")).await?;
            provisioner::create_classes(&client).await?;
            let log = provisioner::open_log(self.directory())?;
            let (directory, nodes) = (self.layout.file("volumes"), self.cluster.real_nodes());
            let disks = self.nodes.as_ref().map(|_| provisioner::Disks { directory, nodes });
            self.provisioner = Some(AbortOnDrop(tokio::spawn(provisioner::run(client, disks, log))));
        }
        for node in self.layout.real_nodes() {
            self.cluster.wait_for_node(&node.name(), node.kubelet()).await?;
        }
        Ok(())
    }

    /// The access handle, for whoever should not own the control plane.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// Shuts a component down as a service manager would, and waits until it is gone.
    pub async fn stop(&self, component: Component) -> Result<()> {
        let process = self.take(component)?;
        process.stop().await
    }

    /// Ends a component the hard way, like a crash.
    pub fn kill(&self, component: Component) -> Result<()> {
        // Dropping a process kills it.
        self.take(component).map(drop)
    }

    /// Starts a component that was stopped or killed, with the same flags, port and data, and waits until it is ready.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        let launch = self.launches.iter().find(|launch| launch.component == component);
        let launch = launch.with_context(|| format!("this control plane was made without {component}"))?;
        {
            let mut processes = self.processes.lock();
            ensure!(!processes.contains_key(&component), "{component} already runs: stop or kill it first");
            processes.insert(component, Process::start(launch)?);
        }
        self.wait_until_ready(component).await
    }

    /// Takes the power from a real node: kubelet, containerd and all pods end at once, and what was only in memory goes with
    /// them. Its Node object stays, and is no longer Ready when kube-controller-manager has missed the kubelet for long enough.
    pub async fn lose_node(&self, name: &str) -> Result<()> {
        let (nodes, node) = self.real_node(name)?;
        let ended = [node.kubelet(), node.containerd()].map(|component| self.processes.lock().remove(&component));
        nodes.cut_power(&self.layout, node).await?;
        drop(ended);
        Ok(())
    }

    /// Gives a lost node its power back and waits until it is Ready: its disk is as it was, and its pods start again or are
    /// over, as their `restartPolicy` says.
    pub async fn recover_node(&self, name: &str) -> Result<()> {
        let (_, node) = self.real_node(name)?;
        self.start_component(node.containerd()).await?;
        self.start_component(node.kubelet()).await?;
        self.cluster.wait_for_node(name, node.kubelet()).await
    }

    fn real_node(&self, name: &str) -> Result<(&RealNodes, RealNode)> {
        let node = self.layout.real_nodes().find(|node| node.name() == name);
        self.nodes.as_ref().zip(node).with_context(|| format!("this cluster has no real node {name}"))
    }

    /// Changes kube-controller-manager's `--controllers` for its next start, like an administrator who edits its manifest.
    pub fn set_controllers(&mut self, controllers: &str) -> Result<()> {
        let component = Component::ControllerManager;
        let launch = self.launches.iter_mut().find(|launch| launch.component == component);
        let launch = launch.with_context(|| format!("this control plane was made without {component}"))?;
        let flag = launch.arguments.iter_mut().find(|argument| argument.starts_with("--controllers="));
        *flag.context("it was started without --controllers")? = format!("--controllers={controllers}");
        Ok(())
    }

    /// Freezes a component: connections stay open, nothing answers. This is what a partition looks like.
    pub fn pause(&self, component: Component) -> Result<()> {
        let processes = self.processes.lock();
        processes.get(&component).with_context(|| format!("{component} does not run"))?.pause()
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: Component) -> Result<()> {
        let processes = self.processes.lock();
        processes.get(&component).with_context(|| format!("{component} does not run"))?.signal(Signal::CONT)
    }

    fn take(&self, component: Component) -> Result<Process> {
        self.processes.lock().remove(&component).with_context(|| format!("{component} does not run"))
    }

    async fn wait_until_ready(&self, component: Component) -> Result<()> {
        let probe = self.probe(component)?;
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            let ready = probe.ask().await;
            // Looked at after the probe: another program could be answering on the port that a dead child wanted.
            self.check_alive(component)?;
            let Err(reason) = ready else { return Ok(()) };
            if Instant::now() > deadline {
                let processes = self.processes.lock();
                let process = processes.get(&component).with_context(|| format!("{component} was stopped"))?;
                let outcome = format!("was not ready after {} s ({reason:#})", READY_DEADLINE.as_secs());
                return Err(ComponentFailed::new(process, outcome).into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn check_alive(&self, component: Component) -> Result<()> {
        let mut processes = self.processes.lock();
        let process = processes.get_mut(&component).with_context(|| format!("{component} was stopped"))?;
        match process.exited()? {
            Some(status) => {
                let failure = ComponentFailed::new(process, format!("ended while starting ({status})"));
                processes.remove(&component);
                Err(failure.into())
            }
            None => Ok(()),
        }
    }

    fn elects_leader(&self, component: Component) -> bool {
        let launch = self.launches.iter().find(|launch| launch.component == component);
        let flags = launch.into_iter().flat_map(|launch| launch.arguments.iter().rev());
        let mut decisions = flags.filter(|flag| *flag == "--leader-elect" || flag.starts_with("--leader-elect="));
        decisions.next().is_some_and(|flag| flag != "--leader-elect=false")
    }

    fn probe(&self, component: Component) -> Result<Probe> {
        let (ports, ca) = (&self.layout.ports, self.layout.file("pki/ca.crt"));
        match component {
            Component::Etcd => Ok(Probe::http(ports.etcd.number(), "/health")),
            Component::ApiServer => Probe::https(ports.apiserver.number(), "/readyz", "ok", &ca),
            Component::ControllerManager => {
                // It calls itself healthy before it has made its controllers, and ends if the API server goes away
                // meanwhile. Each has a line of its own once they exist, which on a standby may be never.
                let expected = if self.elects_leader(component) { "ok" } else { "-controller ok" };
                Probe::https(ports.controller_manager.number(), "/healthz?verbose", expected, &ca)
            }
            Component::Scheduler => Probe::https(ports.scheduler.number(), "/readyz", "ok", &ca),
            Component::Kwok => Ok(Probe::http(ports.kwok.number(), "/healthz")),
            Component::Containerd(number) => {
                let nodes = self.nodes.as_ref().context("this control plane was made without a real node")?;
                Ok(Probe::socket(RealNode { number }.socket_from_outside(nodes.keeper())))
            }
            Component::Kubelet(number) => {
                let port = ports.kubelet_health.get(&number).context("there is no such node")?;
                Ok(Probe::http(port.number(), "/healthz"))
            }
            Component::KubeProxy => Ok(Probe::http(ports.proxy_health.number(), "/healthz")),
        }
    }
}

impl Deref for ControlPlane {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The directory of one run; it goes when the run ends.
#[derive(Debug)]
struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    fn create(options: &Options) -> Result<Self> {
        let path = match &options.directory {
            Some(directory) => {
                let path = std::path::absolute(directory)?;
                ensure!(
                    is_empty_or_absent(&path),
                    "{} is not empty, and a control plane removes its directory when it ends: choose another one",
                    path.display()
                );
                fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
                path
            }
            None => tempfile::Builder::new().prefix(&format!("claimkeeper-{}-", options.name)).tempdir()?.keep(),
        };
        Ok(Self { path })
    }
}

fn is_empty_or_absent(directory: &Path) -> bool {
    fs::read_dir(directory)
        .map_or_else(|error| error.kind() == std::io::ErrorKind::NotFound, |mut entries| entries.next().is_none())
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // The components that ended may have removed it already.
        let _ = fs::remove_dir_all(&self.path);
    }
}

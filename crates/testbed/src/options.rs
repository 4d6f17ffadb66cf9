//! What a control plane is to look like.

use std::path::PathBuf;

/// Choices for [`ControlPlane::start`](crate::ControlPlane::start); the default is what most tests want.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Options {
    pub(crate) name: String,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) controllers: String,
    pub(crate) apiserver_flags: Vec<String>,
    pub(crate) controller_manager_flags: Vec<String>,
    pub(crate) scheduler_flags: Vec<String>,
    pub(crate) controller_manager: bool,
    pub(crate) scheduler: bool,
    pub(crate) nodes: usize,
    pub(crate) real_node: bool,
    pub(crate) provisioner: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "testbed".into(),
            directory: None,
            // The operator under test does this controller's work; two of them would hide each other's mistakes.
            controllers: "*,-ephemeral-volume-controller".into(),
            apiserver_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            controller_manager: true,
            scheduler: true,
            nodes: 3,
            real_node: false,
            provisioner: true,
        }
    }
}

impl Options {
    /// The name in the run directory's name; useful when several control planes run side by side.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Where the control plane keeps its data, logs and kubeconfigs. The directory must be empty or absent; it belongs
    /// to the control plane and goes with it. Without this it is a new temporary directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// The value of kube-controller-manager's `--controllers`; all but the ephemeral-volume controller by default.
    #[must_use]
    pub fn controllers(mut self, controllers: impl Into<String>) -> Self {
        self.controllers = controllers.into();
        self
    }

    /// One more flag for kube-apiserver. It comes after the testbed's own, so that it wins where a flag counts once.
    #[must_use]
    pub fn apiserver_flag(mut self, flag: impl Into<String>) -> Self {
        self.apiserver_flags.push(flag.into());
        self
    }

    /// One more flag for kube-controller-manager.
    #[must_use]
    pub fn controller_manager_flag(mut self, flag: impl Into<String>) -> Self {
        self.controller_manager_flags.push(flag.into());
        self
    }

    /// One more flag for kube-scheduler.
    #[must_use]
    pub fn scheduler_flag(mut self, flag: impl Into<String>) -> Self {
        self.scheduler_flags.push(flag.into());
        self
    }

    /// No kube-controller-manager: nothing binds claims or collects garbage.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.controller_manager = false;
        self
    }

    /// No kube-scheduler: pods stay where they are put.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.scheduler = false;
        self
    }

    /// How many nodes there are from the start, named `node-1` and up. With 0 there is no kwok either, and pods never run.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// A real node, `node-1`, with containerd, kubelet and kube-proxy, in place of those that are only objects. It takes root;
    /// [`real_node_unavailable`](crate::real_node_unavailable) tells whether it can be had.
    #[must_use]
    pub fn real_node(mut self) -> Self {
        self.real_node = true;
        self.nodes = 0;
        self
    }

    /// Whether claims on the testbed's classes get volumes.
    #[must_use]
    pub fn provisioner(mut self, provisioner: bool) -> Self {
        self.provisioner = provisioner;
        self
    }
}

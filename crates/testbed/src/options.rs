//! What a control plane is to look like.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::node::{MOST_REAL_NODES, REAL_NODES};

/// How many nodes there are if nobody says otherwise.
const NODES: usize = 3;

/// Choices for [`ControlPlane::start`](crate::ControlPlane::start); the default is what most tests want.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) name: String,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) controllers: String,
    pub(crate) apiserver_flags: Vec<String>,
    pub(crate) controller_manager_flags: Vec<String>,
    pub(crate) scheduler_flags: Vec<String>,
    pub(crate) controller_manager: bool,
    pub(crate) scheduler: bool,
    /// Those that are only objects, if anybody has said how many.
    nodes: Option<usize>,
    real_nodes: Option<usize>,
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
            nodes: None,
            real_nodes: None,
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
    ///
    /// Beside real nodes there are none of these unless this asks for them. Their names come after those of the real ones, and
    /// the scheduler likes them better, because they are bigger: pods say in a `nodeSelector` where they are to run.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// A real node, `node-1`, with containerd, kubelet and kube-proxy, in place of those that are only objects. It takes root;
    /// [`real_node_unavailable`](crate::real_node_unavailable) tells whether it can be had.
    #[must_use]
    pub fn real_node(self) -> Self {
        self.real_nodes(1)
    }

    /// Several real nodes, `node-1` to `node-3` at most. Each has its own containerd, kubelet, address, subnet and disk; the network
    /// and kube-proxy are the same for all.
    #[must_use]
    pub fn real_nodes(mut self, nodes: usize) -> Self {
        self.real_nodes = Some(nodes);
        self
    }

    /// Whether claims on the testbed's classes get volumes.
    #[must_use]
    pub fn provisioner(mut self, provisioner: bool) -> Self {
        self.provisioner = provisioner;
        self
    }

    /// Whether such a control plane can be.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(nodes) = self.real_nodes {
            ensure!(
                REAL_NODES.contains(&nodes),
                "a cluster can have 1 to {MOST_REAL_NODES} real nodes, and {nodes} were asked for"
            );
        }
        Ok(())
    }

    pub(crate) fn real_node_count(&self) -> usize {
        self.real_nodes.unwrap_or(0)
    }

    /// The names of the nodes that are only objects.
    pub(crate) fn kwok_nodes(&self) -> impl Iterator<Item = String> {
        let nodes = match (self.nodes, self.real_nodes) {
            (Some(nodes), _) => nodes,
            (None, Some(_)) => 0,
            (None, None) => NODES,
        };
        let first = self.real_node_count() + 1;
        (first..first + nodes).map(|number| format!("node-{number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kwok_nodes(options: &Options) -> Vec<String> {
        options.kwok_nodes().collect()
    }

    #[test]
    fn nodes_that_are_only_objects_never_have_the_name_of_a_real_one() {
        assert_eq!(kwok_nodes(&Options::default()), ["node-1", "node-2", "node-3"]);
        assert_eq!(kwok_nodes(&Options::default().real_nodes(2)), [""; 0]);
        // Whichever is said first.
        assert_eq!(kwok_nodes(&Options::default().real_nodes(2).nodes(1)), ["node-3"]);
        assert_eq!(kwok_nodes(&Options::default().nodes(1).real_nodes(2)), ["node-3"]);
    }
}

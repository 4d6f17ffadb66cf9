//! The components' command lines.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    Options,
    binaries::Binaries,
    kubeconfig::{self, Credentials},
    node::{self, RealNode, RealNodes},
    nodes::KWOK_NODE_LABEL,
    pki::Authority,
    ports::Port,
    process::{Component, Launch, Place},
};

/// Everyone's requests at the least detail that still has user, verb, object and response code. Health checks would only
/// fill the log.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
- level: Metadata
"#;
const KWOK_STAGES: &str = include_str!("kwok-stages.yaml");
/// The log is read as one file, so it must not be rotated (the default is at 100 MB).
const AUDIT_LOG_MEGABYTES: u32 = 1_000_000;

/// The user as which the API server calls API servers behind it.
const FRONT_PROXY: &str = "front-proxy-client";

/// A control plane's files and ports before anything runs.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) directory: PathBuf,
    pub(crate) ports: Ports,
}

/// One port for everything that listens, all on 127.0.0.1.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) etcd: Port,
    etcd_peer: Port,
    pub(crate) apiserver: Port,
    pub(crate) controller_manager: Port,
    pub(crate) scheduler: Port,
    pub(crate) kwok: Port,
    /// By the number of the real node.
    pub(crate) kubelet_health: BTreeMap<usize, Port>,
    pub(crate) proxy_health: Port,
    pub(crate) proxy_metrics: Port,
}

impl Ports {
    fn reserve(real_nodes: usize) -> Result<Self> {
        let kubelet_health = RealNode::all(real_nodes).map(|node| Ok((node.number, Port::reserve()?)));
        Ok(Self {
            etcd: Port::reserve()?,
            etcd_peer: Port::reserve()?,
            apiserver: Port::reserve()?,
            controller_manager: Port::reserve()?,
            scheduler: Port::reserve()?,
            kwok: Port::reserve()?,
            kubelet_health: kubelet_health.collect::<Result<_>>()?,
            proxy_health: Port::reserve()?,
            proxy_metrics: Port::reserve()?,
        })
    }

    /// Those that we ask ourselves, and so must reach when the components have a network of their own.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        let asked = [&self.etcd, &self.apiserver, &self.controller_manager, &self.scheduler, &self.kwok];
        let on_nodes = self.kubelet_health.values().chain([&self.proxy_health]);
        asked.into_iter().chain(on_nodes).map(Port::number).collect()
    }
}

impl Layout {
    /// Reserves the ports and writes certificates, kubeconfigs and policies into an empty directory.
    pub(crate) fn create(directory: &Path, options: &Options) -> Result<Self> {
        for part in ["logs", "pids", "kubeconfigs", "bin"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        let layout = Self { directory: directory.to_owned(), ports: Ports::reserve(options.real_node_count())? };
        let authority = Authority::create(&layout.file("pki"))?;
        // 10.0.0.1 is the address of the `kubernetes` Service, for pods of a real node.
        let names = ["127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc", "kubernetes.default"];
        authority.write_serving("serving", &names)?;
        authority.write_client("front-proxy", FRONT_PROXY, None)?;
        if options.real_node_count() > 0 {
            node::write_credentials(&layout, &authority)?;
        }
        fs::write(layout.file("audit-policy.yaml"), AUDIT_POLICY)?;
        fs::write(layout.file("kwok-stages.yaml"), KWOK_STAGES)?;
        let masters = Some("system:masters");
        for (name, user, group) in [
            ("admin", "admin", masters),
            ("kube-controller-manager", "system:kube-controller-manager", None),
            ("kube-scheduler", "system:kube-scheduler", None),
            // Users of their own, so that the audit log can tell their requests from a test's.
            ("kwok", "testbed:kwok", masters),
            ("provisioner", "testbed:provisioner", masters),
        ] {
            let ca = fs::read_to_string(layout.file("pki/ca.crt"))?;
            let identity = authority.client(user, group)?;
            let path = layout.file(&format!("kubeconfigs/{name}.kubeconfig"));
            kubeconfig::write(&path, &layout.url(), &ca, user, &Credentials::Certificate(&identity))?;
        }
        Ok(layout)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn real_nodes(&self) -> impl Iterator<Item = RealNode> {
        RealNode::all(self.ports.kubelet_health.len())
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.apiserver.number())
    }

    pub(crate) fn store(&self) -> String {
        format!("127.0.0.1:{}", self.ports.etcd.number())
    }

    /// How to start the components that the options ask for.
    pub(crate) fn launches(&self, options: &Options, binaries: &Binaries, nodes: Option<&RealNodes>) -> Vec<Launch> {
        let launch = |component: Component, flags: Vec<String>| Launch {
            component,
            program: binaries.controlplane(),
            arguments: std::iter::once(component.name().into_owned()).chain(flags).collect(),
            directory: self.directory.clone(),
            place: nodes.map_or(Place::Here, |nodes| Place::Network { keeper: nodes.keeper() }),
        };
        let mut launches =
            vec![launch(Component::Etcd, self.etcd()), launch(Component::ApiServer, self.apiserver(options))];
        if options.controller_manager {
            launches.push(launch(Component::ControllerManager, self.controller_manager(options)));
        }
        if options.scheduler {
            launches.push(launch(Component::Scheduler, self.scheduler(options)));
        }
        if options.kwok_nodes().next().is_some() {
            launches.push(launch(Component::Kwok, self.kwok()));
        }
        launches.extend(nodes.into_iter().flat_map(|nodes| nodes.launches(self)));
        launches
    }

    fn etcd(&self) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd.number());
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer.number());
        vec![
            "--name=testbed".into(),
            format!("--data-dir={}", self.file("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=testbed={peer}"),
            // The data is worth nothing after a power failure, and disks are slow.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ]
    }

    fn apiserver(&self, options: &Options) -> Vec<String> {
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd.number()),
            format!("--secure-port={}", self.ports.apiserver.number()),
            "--service-cluster-ip-range=10.0.0.0/16".into(),
            format!("--tls-cert-file={}", self.file("pki/serving.crt").display()),
            format!("--tls-private-key-file={}", self.file("pki/serving.key").display()),
            format!("--client-ca-file={}", self.file("pki/ca.crt").display()),
            // Without a front proxy the other components complain in their logs all the time.
            format!("--requestheader-client-ca-file={}", self.file("pki/ca.crt").display()),
            format!("--requestheader-allowed-names={FRONT_PROXY}"),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            format!("--proxy-client-cert-file={}", self.file("pki/front-proxy.crt").display()),
            format!("--proxy-client-key-file={}", self.file("pki/front-proxy.key").display()),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-signing-key-file={}", self.file("pki/service-accounts.key").display()),
            format!("--service-account-key-file={}", self.file("pki/service-accounts.pub").display()),
            "--authorization-mode=Node,RBAC".into(),
            // Off by default but on in OpenShift: whoever sets blockOwnerDeletion needs the right to set finalizers.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".into(),
            // Webhook Services reach their EndpointSlice addresses without kube-proxy.
            "--enable-aggregator-routing".into(),
            "--allow-privileged".into(),
            format!("--audit-policy-file={}", self.file("audit-policy.yaml").display()),
            format!("--audit-log-path={}", self.file("audit.log").display()),
            format!("--audit-log-maxsize={AUDIT_LOG_MEGABYTES}"),
        ];
        flags.extend(if options.real_node_count() > 0 {
            self.apiserver_with_node()
        } else {
            Self::apiserver_without_node()
        });
        flags.extend(options.apiserver_flags.iter().cloned());
        flags
    }

    fn apiserver_without_node() -> Vec<String> {
        vec![
            "--bind-address=127.0.0.1".into(),
            // Endpoints can't be loopback addresses, so nobody could use the `kubernetes` Service anyway.
            "--advertise-address=127.0.0.1".into(),
            "--endpoint-reconciler-type=none".into(),
        ]
    }

    fn apiserver_with_node(&self) -> Vec<String> {
        vec![
            // All addresses of a network that leads nowhere: pods come to the node's, everyone else to loopback.
            "--bind-address=0.0.0.0".into(),
            format!("--advertise-address={}", RealNode::FIRST.address()),
            "--kubelet-preferred-address-types=InternalIP".into(),
            format!("--kubelet-certificate-authority={}", self.file("pki/ca.crt").display()),
            format!("--kubelet-client-certificate={}", self.file("pki/kubelet-client.crt").display()),
            format!("--kubelet-client-key={}", self.file("pki/kubelet-client.key").display()),
        ]
    }

    fn controller_manager(&self, options: &Options) -> Vec<String> {
        let mut flags = self.delegating("kube-controller-manager", &self.ports.controller_manager);
        flags.extend([
            format!("--controllers={}", options.controllers),
            "--use-service-account-credentials".into(),
            format!("--service-account-private-key-file={}", self.file("pki/service-accounts.key").display()),
            format!("--root-ca-file={}", self.file("pki/ca.crt").display()),
            format!("--cluster-signing-cert-file={}", self.file("pki/ca.crt").display()),
            format!("--cluster-signing-key-file={}", self.file("pki/ca.key").display()),
            // The defaults protect big clusters; here they would only make tests wait.
            "--kube-api-qps=500".into(),
            "--kube-api-burst=1000".into(),
        ]);
        flags.extend(options.controller_manager_flags.iter().cloned());
        flags
    }

    fn scheduler(&self, options: &Options) -> Vec<String> {
        let mut flags = self.delegating("kube-scheduler", &self.ports.scheduler);
        flags.extend(options.scheduler_flags.iter().cloned());
        flags
    }

    /// What kube-controller-manager and kube-scheduler have in common.
    fn delegating(&self, component: &str, port: &Port) -> Vec<String> {
        let kubeconfig = self.file(&format!("kubeconfigs/{component}.kubeconfig"));
        vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
            // There is one of each, and waiting for an old lease would slow every restart.
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={}", port.number()),
            format!("--tls-cert-file={}", self.file("pki/serving.crt").display()),
            format!("--tls-private-key-file={}", self.file("pki/serving.key").display()),
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics".into(),
        ]
    }

    fn kwok(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.file("kubeconfigs/kwok.kubeconfig").display()),
            format!("--config={}", self.file("kwok-stages.yaml").display()),
            format!("--manage-nodes-with-label-selector={KWOK_NODE_LABEL}"),
            format!("--server-address=127.0.0.1:{}", self.ports.kwok.number()),
            // No node has a kubelet that could be called.
            "--node-port=0".into(),
            "--node-lease-duration-seconds=40".into(),
        ]
    }
}

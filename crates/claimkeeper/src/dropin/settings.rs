//! The flags of `dynamic-pvc-provisioner` and `reclaimable-pv-releaser`, and what they mean for us.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use platform::logging::KlogOptions;
use provisioner::request::Enabling;
use releaser::{Rights, policy::MANAGED_BY_IN_CODE};

use super::{
    Program,
    flags::{self, Flag, Stop},
    klog,
};
use crate::config::{
    Admin, Config, Feature, LeaderElection, Seconds,
    provisioner::{Authorize, Provisioner, TemplateRules},
    releaser::Releaser,
};

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// Only the version.
    Version,
    /// Work.
    Run(Box<DropIn>),
}

/// The original's settings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DropIn {
    program: Program,
    /// The value of the labels on claims and volumes.
    pub(super) controller_id: String,
    /// The one namespace that the provisioner looks after; all of them if empty.
    pub(super) namespace: String,
    /// Whether the releaser leaves volumes without its label.
    pub(super) disable_automatic_association: bool,
    pub(super) lease_lock_name: String,
    /// Where the Lease is; in `namespace` if empty.
    pub(super) lease_lock_namespace: String,
    /// What this replica calls itself.
    pub(super) lease_lock_id: String,
    /// Otherwise `KUBECONFIG`, the pod's own service account, or the kubeconfig in the home directory: the original's order.
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) klog: KlogOptions,
}

impl AsMut<KlogOptions> for DropIn {
    fn as_mut(&mut self) -> &mut KlogOptions {
        &mut self.klog
    }
}

impl DropIn {
    fn new(program: Program) -> Self {
        Self {
            program,
            controller_id: String::new(),
            namespace: String::new(),
            disable_automatic_association: false,
            lease_lock_name: String::new(),
            lease_lock_namespace: String::new(),
            lease_lock_id: random_uuid(),
            kubeconfig: None,
            klog: KlogOptions::new(program.name()),
        }
    }

    /// Reads a command line without the program's name.
    pub(super) fn parse(program: Program, arguments: &[String]) -> Result<Request, Stop> {
        let mut settings = Self::new(program);
        let mut flags = own_flags();
        if program == Program::Releaser {
            flags.push(association_flag());
        }
        flags.extend(klog::flags());
        let words = flags::parse(program.name(), &flags, &mut settings, arguments)?;
        // Any other words are ignored, by the original too.
        Ok(if words == ["version"] { Request::Version } else { Request::Run(Box::new(settings)) })
    }

    /// The same in our own words. What is missing is told in the original's.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let Self { controller_id, namespace, lease_lock_name, lease_lock_id, .. } = self;
        if controller_id.is_empty() {
            bail!("unable to get controller id (missing controller-id flag).");
        }
        if lease_lock_name.is_empty() {
            bail!("unable to get lease lock resource name (missing lease-lock-name flag).");
        }
        let lease_namespace = [&self.lease_lock_namespace, namespace].into_iter().find(|name| !name.is_empty());
        let Some(lease_namespace) = lease_namespace else {
            bail!("unable to get lease lock resource namespace (missing lease-lock-namespace flag).");
        };
        let leader_election = LeaderElection {
            candidate: true,
            enabled: true,
            name: lease_lock_name.clone(),
            namespace: Some(lease_namespace.clone()),
            identity: Some(lease_lock_id.clone()),
            // The original's, so that replicas of both agree on when a leader is gone.
            lease_duration: Seconds::new(60),
            renew_deadline: Seconds::new(15),
            retry_period: Seconds::new(5),
        };
        // The original has no port, so ours must not get into anybody's way: any free one, and not for other machines. The
        // log says which; `kubectl port-forward` reaches it.
        let admin = Admin { listen: ([127, 0, 0, 1], 0).into() };
        let config = Config { leader_election, admin, ..self.feature() };
        config.check().map_err(|error| anyhow!("{error}"))?;
        Ok(config)
    }

    /// What the original does, safe or not: it is what its users have.
    fn feature(&self) -> Config {
        let controller_id = self.controller_id.clone();
        match self.program {
            Program::Provisioner => Config {
                features: vec![Feature::Provisioner],
                namespace: Some(self.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                provisioner: Provisioner {
                    controller_id,
                    template: TemplateRules::Seed,
                    authorize: Authorize::None,
                    enabling: Enabling::AsGo,
                    ..Provisioner::default()
                },
                ..Config::default()
            },
            Program::Releaser => Config {
                features: vec![Feature::Releaser],
                releaser: Releaser {
                    controller_id,
                    automatic_association: !self.disable_automatic_association,
                    // A replica of the original finds only what it spells itself.
                    association_label: MANAGED_BY_IN_CODE,
                    rights: Rights::Originals,
                    ..Releaser::default()
                },
                ..Config::default()
            },
        }
    }

    /// What somebody may have expected otherwise.
    pub(super) fn warnings(&self) -> Vec<&'static str> {
        let ignored = self.program == Program::Releaser && !self.namespace.is_empty();
        let namespace = "-namespace is only where the Lease is by default: volumes belong to no namespace, and those of all \
                         namespaces are looked after";
        ignored.then_some(namespace).into_iter().collect()
    }
}

fn own_flags() -> Vec<Flag<DropIn>> {
    vec![
        Flag::text("kubeconfig", "optional, absolute path to the kubeconfig file", |settings: &mut DropIn, value| {
            settings.kubeconfig = (!value.is_empty()).then(|| value.into());
        }),
        Flag::text(
            "controller-id",
            "this controller identity name - use the same string for both provisioner and releaser",
            |settings, value| value.clone_into(&mut settings.controller_id),
        ),
        Flag::text("namespace", "limit to a specific namespace - only for provisioner", |settings, value| {
            value.clone_into(&mut settings.namespace);
        }),
        Flag::text("lease-lock-id", "optional, the lease lock holder identity name", |settings: &mut DropIn, value| {
            value.clone_into(&mut settings.lease_lock_id);
        })
        .default("<computed>"),
        Flag::text("lease-lock-name", "the lease lock resource name", |settings, value| {
            value.clone_into(&mut settings.lease_lock_name);
        }),
        Flag::text(
            "lease-lock-namespace",
            "optional, the lease lock resource namespace; default to -namespace",
            |settings, value| value.clone_into(&mut settings.lease_lock_namespace),
        ),
    ]
}

fn association_flag() -> Flag<DropIn> {
    Flag::switch("disable-automatic-association", "disable automatic PV association", |settings, value| {
        settings.disable_automatic_association = value;
    })
}

/// A UUID of version 4, as the original's replicas call themselves.
fn random_uuid() -> String {
    let random: u128 = rand::random();
    // Four bits say the version, two the variant.
    let marked = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{marked:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

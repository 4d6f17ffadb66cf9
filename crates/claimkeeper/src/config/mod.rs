//! The configuration: one strict YAML file in which every key has a safe default.

pub(crate) mod certificates;
#[cfg(test)]
mod chart;
mod enforcement;
mod error;
mod feature;
mod label;
mod placement;
pub(crate) mod provisioner;
pub(crate) mod releaser;
mod seconds;
pub(crate) mod shared_volumes;
pub(crate) mod webhook;

use std::{fs, net::SocketAddr, path::Path};

use ephemeral::reclaim::{self, PLUGINS_WITHOUT_ATTACH, ReclaimCompleted};
use platform::{
    leader::LeaderConfig,
    logging::{self, Format},
};
use serde::Deserialize;

pub(crate) use error::ConfigError;
pub(crate) use feature::{Feature, UnknownFeature};
pub(crate) use seconds::Seconds;

/// Everything that can be configured.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Config {
    /// What runs. Nothing does by default.
    pub features: Vec<Feature>,
    /// The one namespace whose claims are looked after; all of them if absent.
    pub namespace: Option<String>,
    pub leader_election: LeaderElection,
    pub admin: Admin,
    pub webhook: webhook::Webhook,
    pub log: Log,
    pub ephemeral: Ephemeral,
    pub provisioner: provisioner::Provisioner,
    pub releaser: releaser::Releaser,
    pub enforcement: ::enforcement::Settings,
    pub placement: ::placement::Settings,
    pub shared_volumes: shared_volumes::SharedVolumes,
}

/// Who of several replicas acts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct LeaderElection {
    /// Off only where there is never more than one replica: without the Lease nobody keeps two from acting at once.
    pub enabled: bool,
    /// Whether this replica may lead. One that may not answers API servers and tells what it saw, and needs no right to write.
    pub candidate: bool,
    /// The name of the Lease.
    pub name: String,
    /// Where the Lease is; the namespace of the pod or of the kubeconfig's context if absent.
    pub namespace: Option<String>,
    /// What this replica calls itself; host name and a random part if absent.
    pub identity: Option<String>,
    /// How long the others wait for a leader that is silent.
    pub lease_duration: Seconds,
    /// How long a leader tries to renew before it stops acting.
    pub renew_deadline: Seconds,
    /// How long everybody waits between two tries.
    pub retry_period: Seconds,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: true,
            candidate: true,
            name: "claimkeeper".to_owned(),
            namespace: None,
            identity: None,
            lease_duration: Seconds::new(15),
            renew_deadline: Seconds::new(10),
            retry_period: Seconds::new(2),
        }
    }
}

/// The port for metrics and probes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Admin {
    pub listen: SocketAddr,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: ([0, 0, 0, 0], 8080).into() }
    }
}

/// What the log looks like.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Log {
    pub format: Format,
    /// A level, or a list of `target=level`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: Format::Auto, level: "info".to_owned() }
    }
}

/// The feature `ephemeral`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Ephemeral {
    /// How many pods are worked on at once.
    pub concurrency: usize,
    pub authorize: Authorize,
    /// What becomes of the claims of ended pods.
    pub reclaim_completed: ReclaimCompleted,
    /// CSI drivers and plugins in Kubernetes whose volumes, though never attached, are known to be unmounted in time.
    pub reclaim_without_attach: Vec<String>,
}

impl Default for Ephemeral {
    fn default() -> Self {
        Self {
            concurrency: 32,
            authorize: Authorize::Off,
            reclaim_completed: ReclaimCompleted::Off,
            reclaim_without_attach: Vec::new(),
        }
    }
}

impl Ephemeral {
    /// How claims of ended pods are freed; none if they are not.
    pub(crate) fn reclaim(&self) -> Option<reclaim::Settings> {
        (self.reclaim_completed != ReclaimCompleted::Off).then(|| reclaim::Settings {
            reclaim_completed: self.reclaim_completed,
            without_attach: self.reclaim_without_attach.clone(),
            concurrency: self.concurrency,
        })
    }
}

/// Who may have pods with generic ephemeral volumes. The API server asks, by the policy that `render policy` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Authorize {
    /// Whoever may create pods.
    Off,
    /// Who, or whose `ServiceAccount`, may `use` `ephemeralvolumes.claimkeeper.dev`.
    Use,
}

/// More requests at once than this only queue up in the API server, at the cost of everybody else.
const MOST_CONCURRENCY: usize = 256;

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(file).map_err(|error| ConfigError::unreadable(file, &error))?;
        Self::parse(&text).map_err(|error| error.within(file))
    }

    fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// What an administrator should have decided knowingly, about the features that run.
    pub(crate) fn warnings(&self) -> Vec<(Feature, String)> {
        let runs = |feature| self.features.contains(&feature);
        let mut warnings = Vec::new();
        if runs(Feature::Provisioner) {
            let told = self.provisioner.warnings().into_iter();
            warnings.extend(told.map(|warning| (Feature::Provisioner, warning.to_owned())));
        }
        let (made, released) = (&self.provisioner.controller_id, &self.releaser.controller_id);
        if runs(Feature::Provisioner) && runs(Feature::Releaser) && made != released {
            let warning = format!(
                "releaser.controllerId is `{released}`, but provisioner.controllerId is `{made}`: the volumes of the claims that \
                 the provisioner makes are not released"
            );
            warnings.push((Feature::Releaser, warning));
        }
        warnings
    }

    /// What the rule of `enforcement` is told by those who do not run it: they know the operator's own namespace only if it is
    /// written down.
    pub(crate) fn enforcement_settings(&self) -> ::enforcement::Settings {
        ::enforcement::Settings { home: self.leader_election.namespace.clone(), ..self.enforcement.clone() }
    }

    /// What `placement` is told.
    pub(crate) fn placement_settings(&self) -> ::placement::Settings {
        ::placement::Settings { namespace: self.namespace.clone(), ..self.placement.clone() }
    }

    /// Whether the API server asks a feature before it writes.
    pub(crate) fn answers_admission(&self) -> bool {
        !self.webhook_configurations().is_empty()
    }

    /// The webhook configurations of the features that run, as the chart calls them.
    pub(crate) fn webhook_configurations(&self) -> Vec<&'static str> {
        let configuration = |feature: &Feature| match feature {
            Feature::Ephemeral | Feature::Provisioner | Feature::Releaser | Feature::SharedVolumes => None,
            Feature::Enforcement => self.enforcement.claim_webhook.then_some("claimkeeper-enforcement"),
            Feature::Placement => self.placement.pod_webhook.then_some("mutating/claimkeeper-placement"),
        };
        self.features.iter().filter_map(configuration).collect()
    }

    /// What the types alone do not tell.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        logging::check_level(&self.log.level).map_err(|error| ConfigError::value("log.level", &error))?;
        check_concurrency("ephemeral.concurrency", self.ephemeral.concurrency)?;
        check_concurrency("provisioner.concurrency", self.provisioner.concurrency)?;
        self.provisioner.check()?;
        check_concurrency("releaser.concurrency", self.releaser.concurrency)?;
        self.releaser.check()?;
        self.shared_volumes.check()?;
        self.webhook.check()?;
        enforcement::check(&self.enforcement)?;
        check_concurrency("placement.concurrency", self.placement.concurrency)?;
        placement::check(&self.placement)?;
        for plugin in &self.ephemeral.reclaim_without_attach {
            check_plugin(plugin)?;
        }
        if self.namespace.as_deref() == Some("") {
            return Err(ConfigError::value("namespace", &"is empty; leave it out to look after all namespaces"));
        }
        if !self.leader_election.enabled && !self.leader_election.candidate {
            let wrong = "is false, but without leaderElection.enabled nobody else leads, so that nobody would act";
            return Err(ConfigError::value("leaderElection.candidate", &wrong));
        }
        let anybody = self.leader_election.resolve("anywhere", || "anybody".to_owned());
        anybody.validate().map_err(|error| ConfigError::value("leaderElection", &error))
    }
}

/// CSI drivers may have any name but those that Kubernetes keeps for itself.
fn check_plugin(name: &str) -> Result<(), ConfigError> {
    let wrong = match name {
        "" => "has an empty name".to_owned(),
        name if name.starts_with("kubernetes.io/") && !PLUGINS_WITHOUT_ATTACH.contains(&name) => {
            let known = PLUGINS_WITHOUT_ATTACH.join(", ");
            format!("has `{name}`, but of the plugins in Kubernetes it may have only {known}")
        }
        _ => return Ok(()),
    };
    Err(ConfigError::value("ephemeral.reclaimWithoutAttach", &wrong))
}

fn check_concurrency(key: &str, concurrency: usize) -> Result<(), ConfigError> {
    if (1..=MOST_CONCURRENCY).contains(&concurrency) {
        return Ok(());
    }
    Err(ConfigError::value(key, &format!("is {concurrency}, but must be from 1 to {MOST_CONCURRENCY}")))
}

impl LeaderElection {
    /// Fills in what depends on where the process runs.
    pub(crate) fn resolve(&self, namespace: &str, identity: impl FnOnce() -> String) -> LeaderConfig {
        LeaderConfig {
            name: self.name.clone(),
            namespace: self.namespace.clone().unwrap_or_else(|| namespace.to_owned()),
            identity: self.identity.clone().unwrap_or_else(identity),
            lease_duration: self.lease_duration.into(),
            renew_deadline: self.renew_deadline.into(),
            retry_period: self.retry_period.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn nothing_at_all_is_a_valid_configuration() {
        let config = Config::parse("# all defaults\n").unwrap();
        assert!(config.features.is_empty() && config.leader_election.enabled);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest_known_one() {
        assert_eq!(
            error("features: [ephemeral]\nleaderElecton:\n  enabled: true\n"),
            "line 2, column 1: unknown key `leaderElecton`; did you mean `leaderElection`?"
        );
        assert_eq!(
            error("leaderElection:\n  leaseDuratoin: 15s\n"),
            "line 2, column 3: unknown key `leaseDuratoin`; did you mean `leaseDuration`?"
        );
        assert_eq!(
            error("zzz: 1\n"),
            "line 1, column 1: unknown key `zzz`; known here: features, namespace, leaderElection, admin, webhook, \
             log, ephemeral, provisioner, releaser, enforcement, placement, sharedVolumes"
        );
    }

    #[test]
    fn an_unknown_feature_is_named_with_the_nearest_known_one() {
        assert_eq!(
            error("features: [ephemral]\n"),
            "line 1, column 12: there is no feature `ephemral`; did you mean `ephemeral`?"
        );
    }

    #[test]
    fn values_that_cannot_work_are_refused_before_anything_starts() {
        for (text, part) in [
            ("leaderElection:\n  leaseDuration: 5s\n", "leaderElection: "),
            ("leaderElection:\n  leaseDuration: soon\n", "line 2"),
            ("leaderElection:\n  leaseDuration: -5s\n", "must not be negative"),
            (
                "leaderElection: {enabled: false, candidate: false}\n",
                "leaderElection.candidate: is false, but without leaderElection.enabled nobody",
            ),
            ("log:\n  level: verbose\n", "log.level: "),
            ("log:\n  format: xml\n", "line 2"),
            ("admin:\n  listen: here\n", "line 2"),
            ("provisioner:\n  concurrency: 1000\n", "provisioner.concurrency: is 1000"),
            ("provisioner:\n  controllerId: ''\n", "provisioner.controllerId: "),
            ("provisioner:\n  controllerId: not a label\n", "provisioner.controllerId: "),
            ("provisioner:\n  authorize: maybe\n", "line 2"),
            ("provisioner:\n  allowFields: [storageClassName]\n", "line 2"),
            ("ephemeral:\n  concurrency: 0\n", "ephemeral.concurrency: is 0, but must be from 1 to 256"),
            ("ephemeral:\n  authorize: yes please\n", "line 2"),
            ("ephemeral:\n  reclaimCompleted: always\n", "line 2"),
            ("ephemeral:\n  reclaimWithoutAttach: ['']\n", "ephemeral.reclaimWithoutAttach: has an empty name"),
            (
                "ephemeral:\n  reclaimWithoutAttach: [kubernetes.io/iscsi]\n",
                "has `kubernetes.io/iscsi`, but of the plugins in Kubernetes it may have only kubernetes.io/local-volume, ",
            ),
            (
                "webhook:\n  requestTimeout: 0s\n",
                "webhook.requestTimeout: is 0ns, but must be more than nothing and 30s at most",
            ),
            ("webhook:\n  requestTimeout: 31s\n", "webhook.requestTimeout: is 31s"),
            ("webhook:\n  drainDelay: 2m\n", "webhook.drainDelay: is 120s, but must be 60s at most"),
            ("webhook:\n  maxInFlight: 0\n", "webhook.maxInFlight: is 0"),
            ("webhook:\n  maxConnections: 0\n", "webhook.maxConnections: is 0"),
            ("webhook:\n  clientCa: x\n", "unknown key `clientCa`; did you mean `clientCA`?"),
            ("enforcement:\n  action: refuse\n", "line 2"),
            ("enforcement:\n  drivers: [{}]\n", "a driver needs a name or a preset"),
            ("enforcement:\n  drivers: [{preset: topovlm}]\n", "line 2"),
            (
                "enforcement:\n  drivers: [{name: a, ephemeralPools: [b]}]\n",
                "driver a has ephemeralPools, but no poolParameter",
            ),
            ("enforcement:\n  drivers: [{name: a}, {name: a}]\n", "enforcement.drivers: has `a` twice"),
            ("enforcement:\n  trustedCreators: ['']\n", "enforcement.trustedCreators: has an empty name"),
            ("placement:\n  drivers: [{name: a}, {name: a}]\n", "placement.drivers: has `a` twice"),
            (
                "placement:\n  nodeKeys: [topology.kubernetes.io/zone]\n",
                "placement.nodeKeys: has `topology.kubernetes.io/zone`",
            ),
            ("placement:\n  nodeKeys: ['']\n", "placement.nodeKeys: has an empty key"),
            ("placement:\n  nodeGoneBrake: 20\n", "write it like 20%"),
            ("placement:\n  concurrency: 0\n", "placement.concurrency: is 0"),
            (
                "webhook: {certificates: {mode: files}}\n",
                "webhook.certificates.directory: is missing, but mode files needs to know where",
            ),
            ("webhook: {certificates: {directory: /tls}}\n", "webhook.certificates.directory: is only for mode files"),
            ("webhook: {certificates: {mode: cert-manager}}\n", "unknown value `cert-manager`"),
            ("webhook: {certificates: {names: [a b]}}\n", "webhook.certificates.names: has `a b`"),
            ("webhook: {certificates: {secret: ''}}\n", "webhook.certificates.secret: `` cannot be"),
            ("webhook: {certificates: {configurations: [other/x]}}\n", "`other/x` names no webhook configuration"),
            ("webhook: {certificates: {leafLifetime: 30s}}\n", "webhook.certificates.leafLifetime: is 30s"),
            ("webhook: {certificates: {caLifetime: 720h}}\n", "webhook.certificates.caLifetime: is 2592000s"),
            ("sharedVolumes: {concurrency: 0}\n", "sharedVolumes.concurrency: is 0"),
            ("sharedVolumes: {storageos: {endpoint: 'ftp://x'}}\n", "sharedVolumes.storageos.endpoint: `ftp://x`"),
            ("sharedVolumes: {storageos: {pollInterval: 1ms}}\n", "sharedVolumes.storageos.pollInterval: is 1ms"),
            ("sharedVolumes: {createPollInterval: 0s}\n", "sharedVolumes.createPollInterval: is 0ns"),
            ("sharedVolumes: {createWaitDuration: 9000h}\n", "sharedVolumes.createWaitDuration: is longer than a year"),
            (
                "sharedVolumes: {storageos: {cacheExpiry: 2562047788015215h}}\n",
                "sharedVolumes.storageos.cacheExpiry: is longer than a year",
            ),
            ("sharedVolumes: {storageos: {refreshInterval: 0s}}\n", "sharedVolumes.storageos.refreshInterval: is 0ns"),
            ("sharedVolumes: {storageos: {retryInterval: 0s}}\n", "sharedVolumes.storageos.retryInterval: is 0ns"),
            ("sharedVolumes: {storageos: {requestTimeout: 0s}}\n", "sharedVolumes.storageos.requestTimeout: is 0ns"),
            ("sharedVolumes: {storageos: {cacheExpiry: 10ms}}\n", "sharedVolumes.storageos.cacheExpiry: is 10ms"),
            ("sharedVolumes: {probe: icmp}\n", "line 1"),
            ("sharedVolumes: {allowedEndpoints: [10.0.0.0]}\n", "`10.0.0.0` is not a range of addresses"),
            ("sharedVolumes: {endpointGone: forget}\n", "line 1"),
            ("sharedVolumes: {serviceName: volume}\n", "line 1"),
            ("namespace: ''\n", "namespace: is empty"),
            ("features: [ephemeral]\nfeatures: []\n", "the key `features` appears twice"),
        ] {
            let error = error(text);
            assert!(error.contains(part), "{text:?} gave {error:?}");
            assert!(!error.contains('\n'), "{error:?} is more than one line");
        }
    }

    /// The YAML blocks of a documentation page.
    fn documented(page: &str) -> Vec<&str> {
        page.split("```yaml\n").skip(1).filter_map(|block| block.split_once("```")).map(|(block, _)| block).collect()
    }

    #[test]
    fn the_documented_configuration_is_complete_and_shows_the_defaults() {
        let page = include_str!("../../../../docs/configuration.md");
        let [block] = documented(page)[..] else { panic!("the page has one configuration") };
        let shown = Config { features: Vec::new(), ..Config::parse(block).unwrap() };
        assert_eq!(format!("{shown:#?}"), format!("{:#?}", Config::default()));
        let uncommented = block
            .replace("# namespace:", "namespace:")
            .replace("# identity:", "identity:")
            .replace("# clientCA:", "clientCA:")
            .replace("# configurations:", "configurations:")
            .replace("# ca:", "ca:");
        let all_keys = Config::parse(&uncommented).unwrap();
        assert!(all_keys.namespace.is_some() && all_keys.webhook.client_ca.is_some());
        let every = Config { features: Feature::ALL.into(), ..Config::default() };
        let default = every.webhook.certificates.settings("home", &every.webhook_configurations());
        assert_eq!(all_keys.webhook.certificates.configurations, Some(default.configurations));
        assert!(all_keys.shared_volumes.storageos.ca.is_some());
        assert!(all_keys.leader_election.namespace.is_some() && all_keys.leader_election.identity.is_some());
    }

    #[test]
    fn the_configuration_of_every_documented_feature_is_valid() {
        for page in [
            include_str!("../../../../docs/ephemeral.md"),
            include_str!("../../../../docs/provisioner.md"),
            include_str!("../../../../docs/releaser.md"),
            include_str!("../../../../docs/enforcement.md"),
            include_str!("../../../../docs/placement.md"),
            include_str!("../../../../docs/certificates.md"),
            include_str!("../../../../docs/shared-volumes.md"),
        ] {
            let configurations: Vec<&str> =
                documented(page).into_iter().filter(|block| block.starts_with("features:")).collect();
            assert!(!configurations.is_empty());
            for configuration in configurations {
                Config::parse(configuration).unwrap();
            }
        }
    }

    #[test]
    fn certificates_are_kept_for_the_webhooks_of_the_features_that_run() {
        let of = |text: &str| {
            let config = Config::parse(text).unwrap();
            let names = config.webhook_configurations();
            config.webhook.certificates.settings("home", &names).configurations
        };
        let [enforcement, placement] =
            ["claimkeeper-enforcement", "mutating/claimkeeper-placement"].map(|name| name.parse().unwrap());
        assert_eq!(of("features: [enforcement, releaser]"), slice::from_ref(&enforcement));
        assert_eq!(of("features: [placement]"), slice::from_ref(&placement));
        assert_eq!(of("features: [placement, enforcement]"), [placement.clone(), enforcement.clone()]);
        assert_eq!(of("{features: [placement, enforcement], placement: {podWebhook: false}}"), [enforcement]);
        assert_eq!(of("{features: [placement, enforcement], enforcement: {claimWebhook: false}}"), [placement]);
        let named = "{features: [placement], webhook: {certificates: {configurations: [mutating/mine]}}}";
        assert_eq!(of(named), ["mutating/mine".parse().unwrap()]);
    }

    #[test]
    fn every_way_to_reclaim_can_be_configured() {
        for (text, expected) in [
            ("off", ReclaimCompleted::Off),
            ("byClass", ReclaimCompleted::ByClass),
            ("report", ReclaimCompleted::Report),
            ("delete", ReclaimCompleted::Delete),
        ] {
            let config = Config::parse(&format!("ephemeral: {{reclaimCompleted: {text}}}")).unwrap();
            assert_eq!(config.ephemeral.reclaim_completed, expected);
        }
        Config::parse("ephemeral: {reclaimWithoutAttach: [csi.example.dev, kubernetes.io/local-volume]}").unwrap();
    }

    #[test]
    fn durations_read_as_people_write_them() {
        let config =
            Config::parse("leaderElection: {leaseDuration: 1m30s, renewDeadline: 60s, retryPeriod: 500ms}").unwrap();
        let resolved = config.leader_election.resolve("ns", || "me".to_owned());
        assert_eq!(resolved.lease_duration.as_secs(), 90);
        assert_eq!(resolved.retry_period.as_millis(), 500);
    }
}

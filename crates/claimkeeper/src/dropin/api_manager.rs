//! The flags of `storageos-api-manager`, and what they mean for us.
//!
//! Of its controllers this is the one for shared volumes. The flags of the others are taken, so that a Deployment changes its image and
//! nothing else, and one line says what is not done. Flags that were renamed between its document and its releases are known by
//! both names.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, anyhow};
use platform::logging::{self, Format};
use shared_volumes::{EndpointGone, ServiceName};

use super::flags::{self, Flag, Stop};
use crate::{
    config::{
        Admin, Config, Feature, LeaderElection, Log,
        shared_volumes::{SharedVolumes, StorageOs},
    },
    run,
};

pub(super) const NAME: &str = "storageos-api-manager";

/// The Lease of its last releases.
const LEASE: &str = "storageos-api-manager-leader";

/// What the original does besides, and we do not.
const NOT_DONE: &str = "only shared volumes are looked after: nodes are not fenced, labels of nodes and claims are not synchronised, \
                        nodes, namespaces and pools are not kept in step, and no webhook answers; the flags for these are ignored";

/// A cache entry of the original with a negative lifetime stays for ever.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// More often than that nobody has to ask.
const SHORTEST_POLL: Duration = Duration::from_millis(100);

/// The original's settings, as far as they mean something here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    kubeconfig: Option<PathBuf>,
    metrics: String,
    namespace: String,
    leads: bool,
    renew_seconds: u64,
    endpoint: String,
    secret_path: PathBuf,
    poll_interval: GoDuration,
    cache_expiry: GoDuration,
    refresh_interval: GoDuration,
    retry_interval: GoDuration,
    create_poll_interval: GoDuration,
    create_wait_duration: GoDuration,
    log_level: String,
    log_format: Format,
}

/// A length of time, or the opposite of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoDuration {
    Positive(Duration),
    Negative,
}

impl GoDuration {
    const fn seconds(seconds: u64) -> Self {
        Self::Positive(Duration::from_secs(seconds))
    }

    fn or(self, negative: Duration) -> Duration {
        match self {
            Self::Positive(duration) => duration.min(FOR_EVER),
            Self::Negative => negative,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            metrics: ":8080".to_owned(),
            namespace: String::new(),
            leads: false,
            renew_seconds: 10,
            endpoint: "storageos".to_owned(),
            secret_path: "/etc/storageos/secrets/api".into(),
            poll_interval: GoDuration::seconds(5),
            cache_expiry: GoDuration::seconds(60),
            refresh_interval: GoDuration::seconds(60),
            retry_interval: GoDuration::seconds(5),
            create_poll_interval: GoDuration::seconds(1),
            create_wait_duration: GoDuration::seconds(20),
            log_level: "info".to_owned(),
            log_format: Format::Json,
        }
    }
}

/// Does what the original would.
pub(super) fn main(arguments: &[String]) -> ExitCode {
    let settings = match Settings::parse(arguments) {
        Ok(settings) => settings,
        Err(Stop::Help(text)) => {
            eprint!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Wrong(text)) => {
            eprint!("{text}");
            return ExitCode::from(2);
        }
    };
    match settings.operate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Settings {
    /// Reads a command line without the program's name.
    pub(super) fn parse(arguments: &[String]) -> Result<Self, Stop> {
        let mut settings = Self::default();
        // Any other words are ignored, by the original too.
        flags::parse(NAME, &all_flags(), &mut settings, arguments)?;
        Ok(settings)
    }

    fn operate(&self) -> anyhow::Result<()> {
        let config = self.config()?;
        logging::start(config.log.format, &config.log.level)?;
        tracing::warn!(feature = "shared-volumes", "{NOT_DONE}");
        run::run_logged(config, self.kubeconfig.as_deref())
    }

    /// The same in our own words.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let shared_volumes = SharedVolumes {
            storageos: StorageOs {
                endpoint: self.endpoint.clone(),
                secret_path: self.secret_path.clone(),
                poll_interval: self.poll_interval.or(Duration::ZERO).max(SHORTEST_POLL).into(),
                cache_expiry: self.cache_expiry().into(),
                refresh_interval: self.refresh_interval.or(Duration::ZERO).max(Duration::from_secs(1)).into(),
                retry_interval: self.retry_interval.or(Duration::ZERO).max(SHORTEST_POLL).into(),
                ..StorageOs::default()
            },
            create_poll_interval: self.create_poll_interval.or(Duration::ZERO).max(Duration::from_millis(1)).into(),
            create_wait_duration: self.create_wait_duration.or(Duration::ZERO).into(),
            // What the original does, safe or not: it is what its users have.
            service_name: ServiceName::Pv,
            endpoint_gone: EndpointGone::Keep,
            ..SharedVolumes::default()
        };
        let config = Config {
            features: vec![Feature::SharedVolumes],
            leader_election: self.leader_election(),
            admin: Admin { listen: self.listen()? },
            log: Log { format: self.log_format, level: self.log_level.clone() },
            shared_volumes,
            ..Config::default()
        };
        config.check().map_err(|error| anyhow!("{error}"))?;
        Ok(config)
    }

    fn leader_election(&self) -> LeaderElection {
        // Who does not stand for election may say what they like.
        let seconds = if self.leads { self.renew_seconds } else { Self::default().renew_seconds };
        LeaderElection {
            candidate: true,
            enabled: self.leads,
            name: LEASE.to_owned(),
            namespace: Some(self.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            identity: None,
            // The original's arithmetic, so that replicas of both agree on when a leader is gone.
            lease_duration: Duration::from_secs(seconds.saturating_mul(12) / 10).into(),
            renew_deadline: Duration::from_secs(seconds).into(),
            retry_period: Duration::from_secs(5).into(),
        }
    }

    /// Go's zero means that nobody said anything, and less than that means for ever.
    fn cache_expiry(&self) -> Duration {
        let expiry = self.cache_expiry.or(FOR_EVER);
        if expiry.is_zero() { Duration::from_mins(1) } else { expiry.max(Duration::from_secs(1)) }
    }

    /// Where metrics are served; without a host everywhere, and `0` is nowhere that anybody could find.
    fn listen(&self) -> anyhow::Result<SocketAddr> {
        let text = match self.metrics.as_str() {
            "0" => "127.0.0.1:0".to_owned(),
            port if port.starts_with(':') => format!("0.0.0.0{port}"),
            address => address.to_owned(),
        };
        text.parse().with_context(|| format!("-metrics-addr: {} is not an address with a port", self.metrics))
    }
}

fn all_flags() -> Vec<Flag<Settings>> {
    let mut flags = own_flags();
    flags.extend(intervals());
    flags.extend(log_flags());
    flags.extend(ignored());
    flags
}

fn own_flags() -> Vec<Flag<Settings>> {
    vec![
        Flag::text(
            "kubeconfig",
            "Paths to a kubeconfig. Only required if out-of-cluster.",
            |settings: &mut Settings, value| {
                settings.kubeconfig = (!value.is_empty()).then(|| value.into());
            },
        ),
        Flag::text("metrics-addr", "The address the metric endpoint binds to.", |settings: &mut Settings, value| {
            value.clone_into(&mut settings.metrics);
        })
        .default("\":8080\""),
        Flag::switch(
            "enable-leader-election",
            "Enable leader election for controller manager. Enabling this will ensure there is only one active controller manager.",
            |settings: &mut Settings, value| settings.leads = value,
        ),
        Flag::size("leader-renew-seconds", "Leader renewal frequency.", |settings: &mut Settings, value| {
            settings.renew_seconds = value;
        })
        .default("10"),
        Flag::text(
            "namespace",
            "Namespace that the StorageOS components, including api-manager, are installed into.  Will be auto-detected if unset.",
            |settings: &mut Settings, value| value.clone_into(&mut settings.namespace),
        ),
        Flag::text("api-endpoint", "The StorageOS api endpoint address.", |settings: &mut Settings, value| {
            value.clone_into(&mut settings.endpoint);
        })
        .default("\"storageos\""),
        Flag::text(
            "api-secret-path",
            "Path where the StorageOS api secret is mounted.  The secret must have \"username\" and \"password\" set.",
            |settings: &mut Settings, value| settings.secret_path = value.into(),
        )
        .default("\"/etc/storageos/secrets/api\""),
    ]
}

fn intervals() -> Vec<Flag<Settings>> {
    type Field = fn(&mut Settings) -> &mut GoDuration;
    const POLL: Field = |settings| &mut settings.poll_interval;
    const EXPIRY: Field = |settings| &mut settings.cache_expiry;
    macro_rules! duration {
        ($name:literal, $usage:literal, $default:literal, $field:expr) => {
            Flag::duration($name, $usage, |settings: &mut Settings, value| {
                *$field(settings) = value.map_or(GoDuration::Negative, GoDuration::Positive);
            })
            .default($default)
        };
    }
    vec![
        duration!("volume-poll-interval", "Frequency of StorageOS volume polling.", "5s", POLL),
        duration!("api-poll-interval", "The same, as the document calls it.", "5s", POLL),
        duration!("volume-expiry-interval", "Frequency of cached StorageOS volume re-validation.", "1m0s", EXPIRY),
        duration!("cache-expiry-interval", "The same, as the document calls it.", "1m0s", EXPIRY),
        duration!(
            "api-refresh-interval",
            "Frequency of StorageOS api authentication token refresh.",
            "1m0s",
            (|settings: &mut Settings| -> &mut GoDuration { &mut settings.refresh_interval }) as Field
        ),
        duration!(
            "api-retry-interval",
            "Frequency of StorageOS api retries on failure.",
            "5s",
            (|settings: &mut Settings| -> &mut GoDuration { &mut settings.retry_interval }) as Field
        ),
        duration!(
            "k8s-create-poll-interval",
            "Frequency of Kubernetes api polling for new objects to appear once created.",
            "1s",
            (|settings: &mut Settings| -> &mut GoDuration { &mut settings.create_poll_interval }) as Field
        ),
        duration!(
            "k8s-create-wait-duration",
            "Maximum time to wait for new Kubernetes objects to appear.",
            "20s",
            (|settings: &mut Settings| -> &mut GoDuration { &mut settings.create_wait_duration }) as Field
        ),
    ]
}

fn log_flags() -> Vec<Flag<Settings>> {
    vec![
        Flag::switch(
            "zap-devel",
            "Development Mode defaults(encoder=consoleEncoder,logLevel=Debug,stackTraceLevel=Warn). Production Mode \
             defaults(encoder=jsonEncoder,logLevel=Info,stackTraceLevel=Error)",
            |settings: &mut Settings, value| {
                if value {
                    (settings.log_format, settings.log_level) = (Format::Text, "debug".to_owned());
                }
            },
        ),
        Flag::value(
            "zap-encoder",
            "Zap log encoding (one of 'json' or 'console')",
            |settings: &mut Settings, value| {
                settings.log_format = match value.to_ascii_lowercase().as_str() {
                    "json" => Format::Json,
                    "console" => Format::Text,
                    _ => return Err(format!("invalid encoder value {value:?}")),
                };
                Ok(())
            },
        ),
        Flag::value(
            "zap-log-level",
            "Zap Level to configure the verbosity of logging. Can be one of 'debug', 'info', 'error', or any integer value > 0 \
             which corresponds to custom debug levels of increasing verbosity",
            |settings: &mut Settings, value| {
                settings.log_level = match value.to_ascii_lowercase().as_str() {
                    level @ ("debug" | "info" | "error") => level.to_owned(),
                    number if number.parse::<u8>().is_ok_and(|number| number > 0) => "debug".to_owned(),
                    _ => return Err(format!("invalid log level {value:?}")),
                };
                Ok(())
            },
        ),
        Flag::text(
            "zap-stacktrace-level",
            "Zap Level at and above which stacktraces are captured (one of 'info', 'error', 'panic').",
            |_, _| {},
        ),
        Flag::text(
            "zap-time-encoding",
            "Zap time encoding (one of 'epoch', 'millis', 'nano', 'iso8601', 'rfc3339' or 'rfc3339nano'). Defaults to 'epoch'.",
            |_, _| {},
        ),
    ]
}

/// What other controllers of the original are told.
fn ignored() -> Vec<Flag<Settings>> {
    const TEXTS: [(&str, &str); 8] = [
        ("scheduler-name", "\"storageos-scheduler\""),
        ("webhook-service-name", "\"storageos-webhook\""),
        ("webhook-service-namespace", ""),
        ("webhook-secret-name", "\"storageos-webhook\""),
        ("webhook-secret-namespace", ""),
        ("webhook-config-mutating", "\"storageos-mutating-webhook\""),
        ("webhook-mutate-pods-path", "\"/mutate-pods\""),
        ("webhook-mutate-pvcs-path", "\"/mutate-pvcs\""),
    ];
    const DURATIONS: [(&str, &str); 14] = [
        ("webhook-cert-validity", "8760h0m0s"),
        ("webhook-cert-refresh-interval", "30m0s"),
        ("node-poll-interval", "5s"),
        ("node-expiry-interval", "1h0m0s"),
        ("namespace-delete-gc-interval", "1h0m0s"),
        ("node-delete-gc-interval", "1h0m0s"),
        ("node-label-resync-interval", "1h0m0s"),
        ("pvc-label-resync-interval", "1h0m0s"),
        ("namespace-delete-gc-delay", "20s"),
        ("node-delete-gc-delay", "30s"),
        ("node-label-resync-delay", "10s"),
        ("pvc-label-resync-delay", "5s"),
        ("node-fencer-retry-interval", "5s"),
        ("node-fencer-timeout", "25s"),
    ];
    const SIZES: [&str; 5] = [
        "node-fencer-workers",
        "node-delete-workers",
        "namespace-delete-workers",
        "node-label-sync-workers",
        "pvc-label-sync-workers",
    ];
    const SWITCHES: [&str; 2] = ["enable-pvc-label-sync", "enable-node-label-sync"];
    const USAGE: &str = "Ignored: it is for a controller that is not here.";
    let texts = TEXTS.map(|(name, default)| Flag::text(name, USAGE, |_, _| {}).default(default));
    let durations = DURATIONS.map(|(name, default)| Flag::duration(name, USAGE, |_, _| {}).default(default));
    let sizes = SIZES.map(|name| Flag::size(name, USAGE, |_, _| {}).default("5"));
    let switches = SWITCHES.map(|name| Flag::switch(name, USAGE, |_, _| {}).default("true"));
    texts.into_iter().chain(durations).chain(sizes).chain(switches).collect()
}

#[cfg(test)]
mod tests;

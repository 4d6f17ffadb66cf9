//! The feature `shared-volumes`.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use shared_volumes::{
    EndpointGone, Probe, ServiceName, Settings, StorageOsSettings, endpoint::Range, storageos::base_url,
};

use super::{ConfigError, Seconds, check_concurrency};

/// Longer than that nobody means, and clocks cannot count.
const LONGEST: Duration = Duration::from_hours(24 * 366);

/// What can be configured of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct SharedVolumes {
    pub storageos: StorageOs,
    /// How often something that was created is looked for, after a first look at once.
    pub create_poll_interval: Seconds,
    /// For how long; also how long a volume waits for the address that it had.
    pub create_wait_duration: Seconds,
    /// What new Services are called.
    pub service_name: ServiceName,
    /// Whether there is an Endpoints object beside each slice.
    pub endpoints: bool,
    /// What becomes of the way to a server that is gone.
    pub endpoint_gone: EndpointGone,
    /// Where servers may be; anywhere if it is empty.
    pub allowed_endpoints: Vec<Range>,
    /// What a server must answer before its address is published.
    pub probe: Probe,
    /// How many volumes are worked on at once, of those that move and of the others each.
    pub concurrency: usize,
}

/// Where the volumes come from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct StorageOs {
    /// Where the API is.
    pub endpoint: String,
    /// The directory with the files `username` and `password`.
    pub secret_path: PathBuf,
    /// A PEM bundle of the only CAs that are trusted for `https`; the system's if absent.
    pub ca: Option<PathBuf>,
    /// How often it is asked for its volumes.
    pub poll_interval: Seconds,
    /// For how long a verified volume is not read again.
    pub cache_expiry: Seconds,
    /// How often the token is refreshed at the least.
    pub refresh_interval: Seconds,
    /// The longest pause after a login that failed.
    pub retry_interval: Seconds,
    /// How long one answer may take.
    pub request_timeout: Seconds,
}

impl Default for SharedVolumes {
    fn default() -> Self {
        Self {
            storageos: StorageOs::default(),
            create_poll_interval: Seconds::new(1),
            create_wait_duration: Seconds::new(20),
            service_name: ServiceName::Claim,
            endpoints: true,
            endpoint_gone: EndpointGone::Withdraw,
            allowed_endpoints: Vec::new(),
            probe: Probe::None,
            concurrency: 32,
        }
    }
}

impl Default for StorageOs {
    fn default() -> Self {
        Self {
            endpoint: "storageos".to_owned(),
            secret_path: "/etc/storageos/secrets/api".into(),
            ca: None,
            poll_interval: Seconds::new(5),
            cache_expiry: Seconds::new(60),
            refresh_interval: Seconds::new(60),
            retry_interval: Seconds::new(5),
            request_timeout: Seconds::new(10),
        }
    }
}

impl SharedVolumes {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_concurrency("sharedVolumes.concurrency", self.concurrency)?;
        let wrong = |key: &str, why: &str| Err(ConfigError::value(key, &why));
        if let Err(why) = base_url(&self.storageos.endpoint) {
            return wrong("sharedVolumes.storageos.endpoint", &why);
        }
        // What is asked for all the time is no longer a poll.
        for (key, value, least) in [
            ("storageos.pollInterval", self.storageos.poll_interval, Duration::from_millis(100)),
            ("storageos.cacheExpiry", self.storageos.cache_expiry, Duration::from_secs(1)),
            ("storageos.refreshInterval", self.storageos.refresh_interval, Duration::from_secs(1)),
            ("storageos.retryInterval", self.storageos.retry_interval, Duration::from_millis(100)),
            ("storageos.requestTimeout", self.storageos.request_timeout, Duration::from_millis(100)),
            ("createPollInterval", self.create_poll_interval, Duration::from_millis(1)),
            ("createWaitDuration", self.create_wait_duration, Duration::ZERO),
        ] {
            let value = Duration::from(value);
            let key = format!("sharedVolumes.{key}");
            if value < least {
                return wrong(&key, &format!("is {value:?}, but must be {least:?} at least"));
            }
            if value > LONGEST {
                return wrong(&key, "is longer than a year");
            }
        }
        Ok(())
    }

    /// What the feature is told.
    pub(crate) fn settings(&self, namespace: Option<&str>) -> Settings {
        Settings {
            namespace: namespace.map(Into::into),
            poll_interval: self.storageos.poll_interval.into(),
            cache_expiry: self.storageos.cache_expiry.into(),
            create_poll_interval: self.create_poll_interval.into(),
            create_wait_duration: self.create_wait_duration.into(),
            service_name: self.service_name,
            endpoints: self.endpoints,
            endpoint_gone: self.endpoint_gone,
            allowed_endpoints: self.allowed_endpoints.as_slice().into(),
            probe: self.probe,
            concurrency: self.concurrency,
        }
    }

    /// What its source is told.
    pub(crate) fn storageos(&self) -> StorageOsSettings {
        let StorageOs { endpoint, secret_path, ca, refresh_interval, retry_interval, request_timeout, .. } =
            &self.storageos;
        StorageOsSettings {
            endpoint: endpoint.clone(),
            secret_path: secret_path.clone(),
            ca: ca.clone(),
            refresh_interval: (*refresh_interval).into(),
            retry_interval: (*retry_interval).into(),
            request_timeout: (*request_timeout).into(),
        }
    }
}

//! The admission server.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use platform::admission::Settings;
use serde::Deserialize;

use super::{ConfigError, Seconds, certificates::Certificates};

/// The longest `timeoutSeconds` that Kubernetes allows a webhook: whoever takes longer answers nobody.
const LONGEST_REQUEST: Duration = Duration::from_secs(30);

/// Endpoints are up to date within seconds; Kubernetes kills a pod after 30 s unless it is told to wait longer.
const LONGEST_DRAIN: Duration = Duration::from_mins(1);

/// What can be configured of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Webhook {
    pub listen: SocketAddr,
    /// A PEM bundle: only who shows a certificate of one of these CAs is served. Everybody is if absent.
    #[serde(rename = "clientCA")]
    pub client_ca: Option<PathBuf>,
    /// How long one request may take; less than `timeoutSeconds` of the webhook.
    pub request_timeout: Seconds,
    /// How many requests are answered at once.
    pub max_in_flight: usize,
    /// How many connections are open at once.
    pub max_connections: usize,
    /// How long connections are still accepted once the process was asked to end.
    pub drain_delay: Seconds,
    pub certificates: Certificates,
}

impl Default for Webhook {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            listen: settings.listen,
            client_ca: settings.client_ca,
            request_timeout: settings.request_timeout.into(),
            max_in_flight: settings.max_in_flight,
            max_connections: settings.max_connections,
            drain_delay: settings.drain_delay.into(),
            certificates: Certificates::default(),
        }
    }
}

impl Webhook {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let request_timeout = Duration::from(self.request_timeout);
        if request_timeout.is_zero() || request_timeout > LONGEST_REQUEST {
            let wrong =
                format!("is {request_timeout:?}, but must be more than nothing and {LONGEST_REQUEST:?} at most");
            return Err(ConfigError::value("webhook.requestTimeout", &wrong));
        }
        let drain_delay = Duration::from(self.drain_delay);
        if drain_delay > LONGEST_DRAIN {
            let wrong = format!("is {drain_delay:?}, but must be {LONGEST_DRAIN:?} at most");
            return Err(ConfigError::value("webhook.drainDelay", &wrong));
        }
        for (key, value) in [("maxInFlight", self.max_in_flight), ("maxConnections", self.max_connections)] {
            if value == 0 {
                return Err(ConfigError::value(&format!("webhook.{key}"), &"is 0, so nothing would be answered"));
            }
        }
        self.certificates.check()
    }

    /// What the server is told.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            listen: self.listen,
            client_ca: self.client_ca.clone(),
            request_timeout: self.request_timeout.into(),
            max_in_flight: self.max_in_flight,
            max_connections: self.max_connections,
            drain_delay: self.drain_delay.into(),
        }
    }
}

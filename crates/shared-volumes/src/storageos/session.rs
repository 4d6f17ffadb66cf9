//! Who we are to the API: a token, got and renewed by one for all.

use std::{fs, time::Duration};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{
    circuit::pause,
    client::{Answer, Http},
    metrics::Metrics,
};
use crate::{
    settings::StorageOsSettings,
    source::{ErrorClass, SourceError},
};

pub(super) struct Session {
    http: Http,
    settings: StorageOsSettings,
    metrics: Metrics,
    /// Whoever logs in holds it, and the others wait for the outcome.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    logins: u64,
    /// A login failed, and is not tried again before then.
    failed: Option<(Instant, SourceError)>,
    failures: u32,
}

#[derive(Clone)]
struct Token {
    text: String,
    /// Which login it is of, so that only the first who is refused does something about it.
    login: u64,
    refresh_at: Instant,
}

impl Session {
    pub(super) fn new(http: Http, settings: StorageOsSettings, metrics: Metrics) -> Self {
        Self { http, settings, metrics, state: Mutex::default() }
    }

    /// Sends a request as who we are. Only a 401 says that we are nobody any more.
    pub(super) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, SourceError> {
        let token = self.token(None).await?;
        match self.http.send(&method, path, Some(&token.text), body).await {
            Err(error) if error.class == ErrorClass::Authentication => {
                let token = self.token(Some(token.login)).await?;
                self.http.send(&method, path, Some(&token.text), body).await
            }
            answer => answer,
        }
    }

    /// A token that is not of the login that was refused.
    async fn token(&self, refused: Option<u64>) -> Result<Token, SourceError> {
        let mut state = self.state.lock().await;
        if let Some(token) = state.token.take_if(|token| Some(token.login) != refused) {
            let token = if Instant::now() < token.refresh_at { token } else { self.refresh(token).await };
            if !token.text.is_empty() {
                state.token = Some(token.clone());
                return Ok(token);
            }
        }
        state.token = None;
        self.login(&mut state).await
    }

    /// Another token for this one; an empty one if it is worth nothing any more.
    async fn refresh(&self, token: Token) -> Token {
        let answer = self.http.send(&Method::POST, "/auth/refresh", Some(&token.text), None).await;
        let answer = answer.and_then(|answer| self.read(&answer, token.login));
        self.metrics.count("refresh_token", answer.as_ref().err());
        match answer {
            Ok(token) => token,
            Err(error) if error.class == ErrorClass::Authentication => Token { text: String::new(), ..token },
            // It may be good for a while yet; if not, the next answer says so.
            Err(_) => Token { refresh_at: Instant::now() + self.settings.retry_interval, ..token },
        }
    }

    async fn login(&self, state: &mut State) -> Result<Token, SourceError> {
        if let Some((until, error)) = &state.failed
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let function = if state.logins == 0 { "setup" } else { "reset_api" };
        let answer = self.authenticate(state.logins + 1).await;
        self.metrics.count(function, answer.as_ref().err());
        match answer {
            Ok(token) => {
                *state = State { token: Some(token.clone()), logins: token.login, ..State::default() };
                Ok(token)
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                let until = Instant::now() + pause(state.failures).min(self.settings.retry_interval);
                state.failed = Some((until, error.clone()));
                Err(error)
            }
        }
    }

    async fn authenticate(&self, login: u64) -> Result<Token, SourceError> {
        // Read each time: whoever changes the Secret need not restart anything.
        let body = json!({"username": self.secret("username")?, "password": self.secret("password")?});
        let answer = self.http.send(&Method::POST, "/auth/login", None, Some(&body)).await?;
        self.read(&answer, login)
    }

    fn secret(&self, name: &str) -> Result<String, SourceError> {
        let file = self.settings.secret_path.join(name);
        let text = fs::read_to_string(&file).map_err(|error| {
            let message =
                format!("{} cannot be read: {error}; mount the Secret of the StorageOS API there", file.display());
            SourceError::new(ErrorClass::Credentials, message)
        })?;
        Ok(text.trim().to_owned())
    }

    fn read(&self, answer: &Answer, login: u64) -> Result<Token, SourceError> {
        let Granted { token, lifetime } = granted(answer).ok_or_else(|| {
            SourceError::new(ErrorClass::Response, "the StorageOS API answers a login without a token")
        })?;
        let known = lifetime.map(|lifetime| lifetime.saturating_mul(2) / 3);
        let refresh = known.map_or(self.settings.refresh_interval, |known| known.min(self.settings.refresh_interval));
        Ok(Token { text: token, login, refresh_at: Instant::now() + refresh })
    }
}

/// What a login or a refresh gives.
#[derive(Debug, PartialEq, Eq)]
struct Granted {
    token: String,
    lifetime: Option<Duration>,
}

#[derive(Default, Deserialize)]
struct SessionWire {
    session: Option<TokenWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenWire {
    token: Option<String>,
    expires_in_seconds: Option<u64>,
}

/// Both are told twice, in headers and body, and each may be left out in either.
fn granted(answer: &Answer) -> Option<Granted> {
    let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let body = serde_json::from_slice::<Option<SessionWire>>(&answer.body).ok().flatten();
    let session = body.and_then(|body| body.session);
    let in_header = header("authorization").map(|value| match value.split_whitespace().collect::<Vec<_>>()[..] {
        [scheme, token] if scheme.eq_ignore_ascii_case("bearer") => token,
        [token] if !token.eq_ignore_ascii_case("bearer") => token,
        _ => "",
    });
    let in_body = session.as_ref().and_then(|session| session.token.as_deref());
    let token = [in_header, in_body].into_iter().flatten().find(|token| !token.is_empty())?.to_owned();
    let seconds = ["authorization-expires-seconds", "authorization-expires-in"].into_iter().find_map(header);
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let seconds = seconds.or_else(|| session.as_ref().and_then(|session| session.expires_in_seconds));
    Some(Granted { token, lifetime: seconds.map(Duration::from_secs) })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn read(headers: &[(&'static str, &'static str)], body: &'static str) -> Option<(String, Option<u64>)> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let granted = granted(&Answer { headers, body: Bytes::from_static(body.as_bytes()) })?;
        Some((granted.token, granted.lifetime.map(|lifetime| lifetime.as_secs())))
    }

    #[test]
    fn a_token_is_refreshed_in_time_however_long_its_life() {
        let settings = StorageOsSettings {
            endpoint: "storageos".to_owned(),
            secret_path: "/nowhere".into(),
            ca: None,
            refresh_interval: Duration::from_mins(1),
            retry_interval: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
        };
        let metrics = Metrics::register(&platform::metrics::Registry::default());
        let session = Session::new(Http::new(&settings, metrics.clone()).unwrap(), settings, metrics);
        for (lifetime, due) in [("30", 20), ("300", 60), ("0", 0), ("18446744073709551615", 60)] {
            let mut headers = HeaderMap::new();
            headers.insert("authorization", HeaderValue::from_static("Bearer a"));
            headers.insert("authorization-expires-seconds", lifetime.parse().unwrap());
            let start = Instant::now();
            let token = session.read(&Answer { headers, body: Bytes::new() }, 1).unwrap();
            let after = token.refresh_at.duration_since(start).as_secs_f64();
            assert!((f64::from(due)..f64::from(due) + 5.0).contains(&after), "after {after} s of {lifetime}");
        }
    }

    #[test]
    fn a_token_is_found_wherever_it_is() {
        let told = |token: &str, seconds: Option<u64>| Some((token.to_owned(), seconds));
        let body = r#"{"id":"u1","session":{"token":"b","expiresInSeconds":300}}"#;
        assert_eq!(read(&[("authorization", "Bearer a")], ""), told("a", None));
        assert_eq!(
            read(&[("authorization", "bearer a"), ("authorization-expires-seconds", "30")], ""),
            told("a", Some(30))
        );
        assert_eq!(
            read(&[("authorization", "Bearer a"), ("authorization-expires-in", "60")], body),
            told("a", Some(60))
        );
        assert_eq!(read(&[("authorization", "Bearer a")], body), told("a", Some(300)));
        assert_eq!(read(&[], body), told("b", Some(300)));
        // The original panics at the next one.
        assert_eq!(read(&[("authorization", "a")], ""), told("a", None));
        assert_eq!(read(&[("authorization", "Basic a")], body), told("b", Some(300)));
        assert_eq!(read(&[("authorization", "Bearer ")], ""), None);
        assert_eq!(read(&[], "null"), None);
        assert_eq!(read(&[], "not json"), None);
    }
}

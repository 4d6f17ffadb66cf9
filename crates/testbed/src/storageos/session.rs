//! Who may ask: one user, and tokens that expire.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::volume::{random_id, version};

/// What the control plane calls the same thing when it answers a login and when it answers a refresh.
const LOGIN_EXPIRY: HeaderName = HeaderName::from_static("authorization-expires-seconds");
const REFRESH_EXPIRY: HeaderName = HeaderName::from_static("authorization-expires-in");
/// The control plane's own.
const LIFETIME: Duration = Duration::from_mins(5);

/// How the answer to a login or refresh carries the token in its `Authorization` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenHeader {
    /// `Bearer <token>`
    Bearer,
    /// `<token>`, without the word.
    Bare,
    /// There is no such header.
    Missing,
}

/// How tokens are given out. Changing it leaves those alone that are out already.
#[derive(Debug, Clone)]
pub struct Sessions {
    /// How long a token is good. Answers tell it in whole seconds.
    pub lifetime: Duration,
    /// Whether and how it is in the header.
    pub token_header: TokenHeader,
    /// Whether it is in the body, as `session.token`.
    pub token_in_body: bool,
    /// Whether the lifetime is in a header.
    pub lifetime_in_header: bool,
    /// Whether the lifetime is in the body, as `session.expiresInSeconds`.
    pub lifetime_in_body: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            lifetime: LIFETIME,
            token_header: TokenHeader::Bearer,
            token_in_body: true,
            lifetime_in_header: true,
            lifetime_in_body: true,
        }
    }
}

/// The user and the tokens that are out.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) username: String,
    pub(super) password: String,
    pub(super) sessions: Sessions,
    user_id: String,
    created: Timestamp,
    tokens: HashMap<String, Instant>,
}

impl Gate {
    pub(super) fn new(username: &str, password: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
            sessions: Sessions::default(),
            user_id: random_id(),
            created: Timestamp::now(),
            tokens: HashMap::new(),
        }
    }

    pub(super) fn admits(&self, token: Option<&str>) -> bool {
        token.and_then(|token| self.tokens.get(token)).is_some_and(|expiry| Instant::now() < *expiry)
    }

    pub(super) fn forget_tokens(&mut self) {
        self.tokens.clear();
    }

    /// A new token, as the headers and the body of the answer.
    pub(super) fn open(&mut self, is_refresh: bool) -> (HeaderMap, Value) {
        let now = Instant::now();
        self.tokens.retain(|_, expiry| now < *expiry);
        let Sessions { lifetime, token_header, token_in_body, lifetime_in_header, lifetime_in_body } = self.sessions;
        let token = token(&self.username, lifetime);
        let mut headers = HeaderMap::new();
        let value = match token_header {
            TokenHeader::Bearer => HeaderValue::try_from(format!("Bearer {token}")).ok(),
            TokenHeader::Bare => HeaderValue::try_from(&token).ok(),
            TokenHeader::Missing => None,
        };
        headers.extend(value.map(|value| (AUTHORIZATION, value)));
        if lifetime_in_header {
            let name = if is_refresh { REFRESH_EXPIRY } else { LOGIN_EXPIRY };
            headers.insert(name, HeaderValue::from(lifetime.as_secs()));
        }
        let mut session = json!({});
        if lifetime_in_body {
            session["expiresInSeconds"] = json!(lifetime.as_secs());
        }
        if token_in_body {
            session["token"] = json!(token);
        }
        self.tokens.insert(token, now + lifetime);
        let body = json!({
            "id": self.user_id,
            "username": self.username,
            "isAdmin": true,
            "groups": null,
            "createdAt": self.created,
            "updatedAt": self.created,
            "version": version(1),
            "session": session,
        });
        (headers, body)
    }
}

/// In the form of a JWT, whose signature nobody can check here.
fn token(username: &str, lifetime: Duration) -> String {
    let expiry = Timestamp::now().as_second().saturating_add_unsigned(lifetime.as_secs());
    let parts = [
        json!({ "alg": "HS256", "typ": "JWT" }).to_string().into_bytes(),
        json!({ "sub": username, "exp": expiry }).to_string().into_bytes(),
        rand::random::<[u8; 16]>().to_vec(),
    ];
    parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".")
}

//! What the API answers: the rules of the control plane.

use std::collections::BTreeMap;

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Call, Route,
    store::{Namespace, State},
    volume::{MOUNT_ENDPOINT, PV_NAME, PVC_NAME, PVC_NAMESPACE, Stored, Told},
};

/// An answer before anything happens to it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// JSON, or nothing.
    pub(super) body: Option<String>,
    /// Which endpoints it tells, by the volumes' ids.
    pub(super) told: Vec<(String, Option<String>)>,
}

impl Answer {
    fn nothing() -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::new(), body: None, told: Vec::new() }
    }

    fn ok(body: &Value) -> Self {
        Self { body: Some(body.to_string()), ..Self::nothing() }
    }

    fn volume(stored: &Stored) -> Self {
        let Told { json, endpoint } = stored.told.clone();
        Self { body: Some(json), told: vec![(stored.id.clone(), endpoint)], ..Self::nothing() }
    }

    fn volumes<'a>(volumes: impl Iterator<Item = &'a Stored>) -> Self {
        let (mut list, mut told) = (Vec::new(), Vec::new());
        for stored in volumes {
            list.push(stored.told.json.as_str());
            told.push((stored.id.clone(), stored.told.endpoint.clone()));
        }
        Self { body: Some(format!("[{}]", list.join(","))), told, ..Self::nothing() }
    }

    /// The error with the text that the control plane has for it.
    pub(super) fn error(status: StatusCode) -> Self {
        Refusal::of(status).into()
    }
}

/// Why a request is not carried out.
struct Refusal(StatusCode, &'static str);

impl Refusal {
    fn of(status: StatusCode) -> Self {
        let text = match status {
            StatusCode::UNAUTHORIZED => "authentication required",
            StatusCode::FORBIDDEN => "unauthorised",
            StatusCode::NOT_FOUND => "not found",
            StatusCode::CONFLICT => "in use",
            StatusCode::PRECONDITION_FAILED => "attempting to write stale object",
            StatusCode::UNPROCESSABLE_ENTITY => "invalid state for operation (currently \"deleted\")",
            StatusCode::LOCKED => "entity locked",
            StatusCode::SERVICE_UNAVAILABLE => "temporary store failure",
            StatusCode::INSUFFICIENT_STORAGE => "insufficient storage capacity available",
            _ => status.canonical_reason().unwrap_or("unknown error"),
        };
        Self(status, text)
    }

    fn bad_request(text: &'static str) -> Self {
        Self(StatusCode::BAD_REQUEST, text)
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal(status, text): Refusal) -> Self {
        Self { status, ..Self::ok(&json!({ "error": text })) }
    }
}

/// Carries a request out.
pub(super) fn to(call: &Call, state: &mut State) -> Answer {
    let is_open = call.route == Route::Login;
    if !is_open && !state.gate.admits(call.token.as_deref()) {
        return Answer::error(StatusCode::UNAUTHORIZED);
    }
    match call.route {
        Route::Login => login(call, state),
        Route::Refresh => open(state, true),
        Route::Logout => {
            state.gate.forget_tokens();
            Answer::nothing()
        }
        Route::Namespaces => Answer::ok(&state.namespaces.iter().map(Namespace::json).collect()),
        Route::Nodes => Answer::ok(&json!(state.nodes)),
        Route::Pools => Answer::ok(&json!([])),
        Route::Licence => Answer::ok(&json!({ "clusterCapacityBytes": 1_u64 << 50, "kind": "project" })),
        Route::Other => Answer::error(StatusCode::NOT_FOUND),
        Route::Namespace | Route::Volumes | Route::Volume | Route::Labels | Route::MountEndpoint => {
            in_namespace(call, state)
        }
    }
}

fn login(call: &Call, state: &mut State) -> Answer {
    #[derive(Deserialize)]
    struct Credentials {
        username: String,
        password: String,
    }
    let Ok(given) = serde_json::from_slice::<Credentials>(&call.body) else {
        return Refusal::bad_request("username and password are required").into();
    };
    if given.username != state.gate.username || given.password != state.gate.password {
        return Answer::error(StatusCode::UNAUTHORIZED);
    }
    open(state, false)
}

fn open(state: &mut State, is_refresh: bool) -> Answer {
    let (headers, body) = state.gate.open(is_refresh);
    Answer { headers, ..Answer::ok(&body) }
}

fn in_namespace(call: &Call, state: &mut State) -> Answer {
    let namespace = state.namespaces.iter().find(|namespace| Some(&namespace.id) == call.namespace_id.as_ref());
    let Some(namespace) = namespace else { return Answer::error(StatusCode::NOT_FOUND) };
    let id = namespace.id.clone();
    match call.route {
        Route::Namespace => return Answer::ok(&namespace.json()),
        Route::Volumes => {
            let volumes = state.volumes.iter().filter(|stored| stored.namespace_id == id);
            return Answer::volumes(volumes);
        }
        _ => {}
    }
    let stored = call.volume.as_deref().and_then(|volume| state.volume_mut(volume));
    let Some(stored) = stored.filter(|stored| stored.namespace_id == id) else {
        return Answer::error(StatusCode::NOT_FOUND);
    };
    match call.route {
        Route::MountEndpoint => publish(call, stored).map_or_else(Answer::from, |()| Answer::nothing()),
        Route::Labels => relabel(call, stored).map_or_else(Answer::from, |()| Answer::volume(stored)),
        _ => Answer::volume(stored),
    }
}

fn publish(call: &Call, stored: &mut Stored) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Update {
        #[serde(default)]
        mount_endpoint: String,
        version: Option<String>,
    }
    let update = serde_json::from_slice::<Update>(&call.body);
    let update = update.map_err(|_| Refusal::bad_request("the body is not a mount endpoint"))?;
    check_version(call, stored, update.version.as_deref())?;
    stored.volume.labels.insert(MOUNT_ENDPOINT.into(), update.mount_endpoint);
    stored.touch();
    Ok(())
}

fn relabel(call: &Call, stored: &mut Stored) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Update {
        labels: BTreeMap<String, String>,
        version: Option<String>,
    }
    let update = serde_json::from_slice::<Update>(&call.body);
    let update = update.map_err(|_| Refusal::bad_request("the body is not an update of a volume"))?;
    check_version(call, stored, update.version.as_deref())?;
    let (old, new) = (&stored.volume.labels, &update.labels);
    if old.keys().chain(new.keys()).filter(|key| is_reserved(key)).any(|key| old.get(key) != new.get(key)) {
        return Err(Refusal::bad_request("StorageOS labels cannot be changed"));
    }
    stored.volume.labels = update.labels;
    stored.touch();
    Ok(())
}

fn is_reserved(label: &str) -> bool {
    label.starts_with("storageos.com/") || [PV_NAME, PVC_NAME, PVC_NAMESPACE].contains(&label)
}

fn check_version(call: &Call, stored: &Stored, version: Option<&str>) -> Result<(), Refusal> {
    match version {
        _ if call.ignores_version() => Ok(()),
        None | Some("") => Err(Refusal::bad_request("the version is required")),
        Some(version) if version == stored.version() => Ok(()),
        Some(_) => Err(Refusal::of(StatusCode::PRECONDITION_FAILED)),
    }
}

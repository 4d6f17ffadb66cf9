//! Which fields a pod's author may decide.

use std::str::FromStr;

use platform::spelling::nearest;
use serde_json::{Map, Value};

use super::{Template, TemplateError};

/// Fields through which a claim can reach data that is not the pod's own: an administrator must allow each by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestrictedField {
    /// Binds to a volume of the author's choice, such as one that another tenant just left.
    VolumeName,
    /// Picks a volume by labels, with the same effect.
    Selector,
    /// Starts as a copy of another claim or snapshot.
    DataSource,
    /// The same, also across namespaces.
    DataSourceRef,
}

impl RestrictedField {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::VolumeName, Self::Selector, Self::DataSource, Self::DataSourceRef];

    /// The field's name in a claim's spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::VolumeName => "volumeName",
            Self::Selector => "selector",
            Self::DataSource => "dataSource",
            Self::DataSourceRef => "dataSourceRef",
        }
    }
}

impl FromStr for RestrictedField {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let unknown = || format!("`{name}` is not a field that can be allowed; those are: {names}");
        Self::ALL.into_iter().find(|field| field.name() == name).ok_or_else(unknown)
    }
}

type Object = Map<String, Value>;
type Outcome<T = ()> = Result<T, TemplateError>;

const TOP: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
const METADATA: [&str; 11] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "finalizers",
    "generateName",
    "resourceVersion",
    "uid",
    "managedFields",
];
const SPEC: [&str; 9] = [
    "accessModes",
    "resources",
    "storageClassName",
    "volumeMode",
    "volumeAttributesClassName",
    "volumeName",
    "selector",
    "dataSource",
    "dataSourceRef",
];

/// Takes what is allowed, ignores what is harmless, refuses the rest.
pub(super) fn check(mut document: Object, namespace: &str, allowed: &[RestrictedField]) -> Outcome<Template> {
    expect_kind(&document)?;
    only_known("", &document, &TOP)?;
    let metadata = check_metadata(take_object(&mut document, "metadata")?, namespace)?;
    let mut spec = take_object(&mut document, "spec")?;
    if spec.is_empty() {
        return Err(TemplateError::new(
            "it has no spec; at least accessModes and resources.requests.storage are needed",
        ));
    }
    check_spec(&mut spec, allowed)?;
    let status = document.get("status");
    if status.is_some_and(|status| !is_blank(status)) {
        return Err(TemplateError::new("status is not for a template to say; leave it out"));
    }
    Ok(Template { metadata, spec })
}

/// What the original takes: the object as it is.
pub(super) fn take_all(mut document: Object) -> Outcome<Template> {
    expect_kind(&document)?;
    let mut metadata = take_object(&mut document, "metadata")?;
    // The pod becomes the owner, whatever is given here.
    metadata.remove("ownerReferences");
    Ok(Template { metadata, spec: take_object(&mut document, "spec")? })
}

fn expect_kind(document: &Object) -> Outcome {
    let field = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
    match (field("apiVersion"), field("kind")) {
        ("v1", "PersistentVolumeClaim") => Ok(()),
        // The words of the original, without the whole object that it printed after them.
        ("v1", kind) if !kind.is_empty() => Err(TemplateError::new(format!("expected pvc, got: {}", shorten(kind)))),
        (_, "") => Err(TemplateError::new("it has no kind; write apiVersion: v1 and kind: PersistentVolumeClaim")),
        (version, _) => {
            let version = shorten(version);
            Err(TemplateError::new(format!("its apiVersion is `{version}`, but a claim's is v1")))
        }
    }
}

fn check_metadata(mut metadata: Object, namespace: &str) -> Outcome<Object> {
    only_known("metadata.", &metadata, &METADATA)?;
    for (field, why) in [
        ("finalizers", "they could keep the claim from ever being deleted"),
        ("generateName", "the claim is named by the pod's volume"),
        ("resourceVersion", "the claim does not exist yet"),
        ("uid", "the claim does not exist yet"),
        ("managedFields", "the claim does not exist yet"),
    ] {
        if metadata.get(field).is_some_and(|value| !is_blank(value)) {
            return Err(TemplateError::new(format!("metadata.{field} must not be set: {why}")));
        }
    }
    match metadata.get("namespace") {
        None | Some(Value::Null) => {}
        Some(Value::String(given)) if given == namespace || given.is_empty() => {}
        Some(_) => {
            let sentence =
                format!("metadata.namespace is not the pod's; the claim is made in {namespace}, leave it out");
            return Err(TemplateError::new(sentence));
        }
    }
    let mut kept = Object::new();
    for kind in ["labels", "annotations"] {
        let given = take_object(&mut metadata, kind).map_err(|_| must_be(&format!("metadata.{kind}"), "a map"))?;
        for (key, value) in &given {
            if is_reserved(key) {
                let key = shorten(key);
                let sentence =
                    format!("metadata.{kind} has the reserved key {key}, which only Kubernetes and Claimkeeper set");
                return Err(TemplateError::new(sentence));
            }
            if !value.is_string() {
                let place = format!("metadata.{kind}.{}", shorten(key));
                return Err(must_be(&place, "a string; put the value in quotes"));
            }
        }
        if !given.is_empty() {
            kept.insert(kind.to_owned(), Value::Object(given));
        }
    }
    Ok(kept)
}

// `volume.beta.kubernetes.io/storage-class` would swap the class, `pv.kubernetes.io/bind-completed` would skip binding, and
// who knows what the next one does.
fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    let prefix = prefix.to_ascii_lowercase();
    ["kubernetes.io", "k8s.io", "claimkeeper.dev"]
        .iter()
        .any(|domain| prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn check_spec(spec: &mut Object, allowed: &[RestrictedField]) -> Outcome {
    only_known("spec.", spec, &SPEC)?;
    for field in RestrictedField::ALL.into_iter().filter(|field| !allowed.contains(field)) {
        let name = field.name();
        // Not even a blank one goes on: `selector: {}` would keep most provisioners from making a volume.
        if spec.remove(name).is_some_and(|value| !is_blank(&value)) {
            let sentence = format!(
                "spec.{name} is not allowed here, because it can reach other people's data; leave it out, or ask an \
                 administrator to name it in provisioner.allowFields"
            );
            return Err(TemplateError::new(sentence));
        }
    }
    for name in ["storageClassName", "volumeMode", "volumeAttributesClassName", "volumeName"] {
        if spec.get(name).is_some_and(|value| !value.is_string() && !value.is_null()) {
            return Err(must_be(&format!("spec.{name}"), "a string; put the value in quotes"));
        }
    }
    let modes = spec.get("accessModes").and_then(Value::as_array);
    if !modes.is_some_and(|modes| !modes.is_empty() && modes.iter().all(Value::is_string)) {
        return Err(must_be("spec.accessModes", "a list of access modes, such as [ReadWriteOnce]"));
    }
    check_resources(spec.get("resources"))
}

fn check_resources(resources: Option<&Value>) -> Outcome {
    let needed = || must_be("spec.resources", "a map with requests.storage, such as {requests: {storage: 1Gi}}");
    let resources = resources.and_then(Value::as_object).ok_or_else(needed)?;
    only_known("spec.resources.", resources, &["requests", "limits"])?;
    for kind in ["requests", "limits"] {
        let Some(amounts) = resources.get(kind).filter(|amounts| !amounts.is_null()) else { continue };
        let place = format!("spec.resources.{kind}");
        let amounts = amounts.as_object().ok_or_else(|| must_be(&place, "a map"))?;
        only_known(&format!("{place}."), amounts, &["storage"])?;
        if !amounts.values().all(|amount| amount.is_string() || amount.is_number()) {
            return Err(must_be(&format!("{place}.storage"), "an amount, such as 1Gi"));
        }
    }
    let storage = resources.get("requests").and_then(|requests| requests.get("storage"));
    storage.map(drop).ok_or_else(needed)
}

/// A misspelt field is an error that names it and its nearest neighbour.
fn only_known(place: &str, object: &Object, known: &[&str]) -> Outcome {
    let Some(unknown) = object.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let hint = match nearest(unknown, known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("known: {}", known.join(", ")),
    };
    Err(TemplateError::new(format!("{place}{} is not a field of a claim; {hint}", shorten(unknown))))
}

fn take_object(object: &mut Object, name: &str) -> Outcome<Object> {
    match object.remove(name) {
        None | Some(Value::Null) => Ok(Object::new()),
        Some(Value::Object(inner)) => Ok(inner),
        Some(_) => Err(must_be(name, "a map")),
    }
}

fn must_be(place: &str, what: &str) -> TemplateError {
    TemplateError::new(format!("{place} must be {what}"))
}

/// What `kubectl get -o yaml` leaves behind without saying anything.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Somebody else's text in our sentence: enough to recognise it.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    let clean: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(LONGEST + 1).collect();
    if clean.chars().count() > LONGEST { clean.chars().take(LONGEST).collect::<String>() + "…" } else { clean }
}

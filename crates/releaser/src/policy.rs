//! Whether a volume is ours to release, and on which terms.
//!
//! ```text
//! class: claimkeeper.dev/release: soft | namespace | pool | never     decides alone; nobody's label overrides it
//! class: reclaimable-pv-releaser.kubernetes.io/controller-id: <id>    pool, as in the original's later versions
//! volume: reclaimable-pv-releaser.kubernetes.io/managed-by: <id>      pool, as in its first ones
//! ```

use cluster::{Class, Volume};
use k8s_openapi::jiff::SignedDuration;

/// The class's word on what becomes of its Released volumes.
pub const RELEASE: &str = "claimkeeper.dev/release";
/// How long a volume stays Released before it is released.
pub const RELEASE_AFTER: &str = "claimkeeper.dev/release-after";
/// How many volumes of the class may be free at once.
pub const RELEASE_MAX_AVAILABLE: &str = "claimkeeper.dev/release-max-available";
/// Which template cleans a volume before it is released.
pub const RELEASE_SCRUB: &str = "claimkeeper.dev/release-scrub";
/// Where a volume's previous claim is kept.
pub const PREVIOUS_CLAIM: &str = "claimkeeper.dev/previous-claim";

/// The class's annotation in the original's later versions.
pub const CONTROLLER_ID: &str = "reclaimable-pv-releaser.kubernetes.io/controller-id";
/// The label of a volume, or of its claim, as the original documents it.
pub const MANAGED_BY: &str = "reclaimable-pv-releaser.kubernetes.io/managed-by";
/// The same label as the original's code spells it.
pub const MANAGED_BY_IN_CODE: &str = "reclaimable-pv-releaser/managed-by";
/// The label of claims that the provisioner made.
pub const PROVISIONED_BY: &str = "dynamic-pvc-provisioner.kubernetes.io/managed-by";

/// To whom a Released volume is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// To the next claim that has the previous one's namespace and name.
    Soft,
    /// To the next claim of the previous one's namespace that it fits.
    Namespace,
    /// To any claim in the cluster, with whatever data is on it.
    Pool,
    /// To nobody.
    Never,
}

impl Mode {
    const ALL: [(&'static str, Self); 4] =
        [("soft", Self::Soft), ("namespace", Self::Namespace), ("pool", Self::Pool), ("never", Self::Never)];
}

/// On which terms a volume is released.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Terms {
    /// To whom.
    pub mode: Mode,
    /// How long after its claim is gone.
    pub after: SignedDuration,
    /// Only while fewer volumes of the class are free.
    pub max_available: Option<usize>,
    /// Only after a Job of this template has cleaned it.
    pub scrub: Option<Box<str>>,
}

/// Why there are no terms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTerms {
    /// Nobody asks for it.
    #[error("neither its class nor a label says that it is to be released")]
    NotManaged,
    /// Somebody else does it.
    #[error("it is for the releaser with the controller id `{0}`")]
    ManagedByOther(Box<str>),
    /// The administrator's words mean nothing to us.
    #[error("the annotation {annotation} of class {class} is `{value}`, but must be {wanted}")]
    Wrong {
        /// The class's name.
        class: Box<str>,
        /// The annotation.
        annotation: &'static str,
        /// What it says.
        value: Box<str>,
        /// What it may say.
        wanted: &'static str,
    },
}

/// The terms of a volume, for the releaser with this id.
pub fn terms(volume: &Volume, class: Option<&Class>, controller_id: &str) -> Result<Terms, NoTerms> {
    let Some(class) = class else {
        return associated(volume, None, controller_id).map(|()| Terms::pool());
    };
    let mode = option(class, RELEASE, "soft, namespace, pool or never", |word| {
        Mode::ALL.into_iter().find(|(name, _)| *name == word).map(|(_, mode)| mode)
    })?;
    let mode = match mode {
        Some(mode) => mode,
        None => associated(volume, Some(class), controller_id).map(|()| Mode::Pool)?,
    };
    let after = option(class, RELEASE_AFTER, "a time such as 10m or 1h30m", |text| {
        text.parse().ok().filter(|after: &SignedDuration| !after.is_negative())
    })?;
    let max_available = option(class, RELEASE_MAX_AVAILABLE, "a number of volumes", |text| text.parse().ok())?;
    let scrub =
        option(class, RELEASE_SCRUB, "the name of a template, in a class whose volumes go to the pool", |name| {
            (mode == Mode::Pool && !name.is_empty()).then(|| name.into())
        })?;
    Ok(Terms { mode, after: after.unwrap_or_default(), max_available, scrub })
}

/// To whom a volume goes by its terms; to nobody if it has none.
pub(crate) fn mode(volume: &Volume, class: Option<&Class>, controller_id: &str) -> Mode {
    terms(volume, class, controller_id).map_or(Mode::Never, |terms| terms.mode)
}

impl Terms {
    fn pool() -> Self {
        Self { mode: Mode::Pool, after: SignedDuration::ZERO, max_available: None, scrub: None }
    }
}

/// What an annotation of the class says; none if it has none.
fn option<T>(
    class: &Class,
    annotation: &'static str,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, NoTerms> {
    let Some(value) = class.annotations.get(annotation) else { return Ok(None) };
    let wrong = || NoTerms::Wrong { class: class.key.name().into(), annotation, value: value.as_str().into(), wanted };
    parse(value).map(Some).ok_or_else(wrong)
}

/// Whether a label of the volume, or its class as the original has it, names us.
fn associated(volume: &Volume, class: Option<&Class>, controller_id: &str) -> Result<(), NoTerms> {
    let labels = [MANAGED_BY, MANAGED_BY_IN_CODE].into_iter().filter_map(|key| volume.labels.get(key));
    let class = class.and_then(|class| class.annotations.get(CONTROLLER_ID));
    one_of_us(labels.chain(class), controller_id)
}

/// Several words must all name us: who wrote one of them for somebody else meant it.
pub(crate) fn one_of_us<'a>(ids: impl Iterator<Item = &'a String>, controller_id: &str) -> Result<(), NoTerms> {
    let mut named = false;
    for id in ids {
        if id != controller_id {
            return Err(NoTerms::ManagedByOther(id.as_str().into()));
        }
        named = true;
    }
    if named { Ok(()) } else { Err(NoTerms::NotManaged) }
}

/// Whether a label of the volume says who releases it, whoever that is.
pub(crate) fn is_associated(volume: &Volume) -> bool {
    [MANAGED_BY, MANAGED_BY_IN_CODE].iter().any(|key| volume.labels.contains_key(*key))
}

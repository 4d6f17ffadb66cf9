//! Whether a claim is under the rule: by its class, or by a volume that it could have.

use std::sync::Arc;

use cluster::Class;

use crate::{
    observation::{Look, Observation, Offered},
    settings::{ACCEPT, Driver, Settings},
};

/// The annotation by which a class is put under the rule or taken out.
pub const EPHEMERAL_ONLY: &str = "claimkeeper.dev/ephemeral-only";

/// Whether a claim is under the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing<'a> {
    /// It is.
    Governed {
        /// Whose storage it is.
        driver: &'a str,
        /// The annotation by which the risk is accepted.
        accept_annotation: &'a str,
        /// The volume by which it is; none if its class is enough.
        volume: Option<&'a str>,
    },
    /// It is not, for this reason.
    Exempt(Exempt),
}

/// Why a claim is not under the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exempt {
    /// It has no class.
    NoClass,
    /// Its class does not exist.
    ClassNotFound,
    /// The class says so.
    ByAnnotation,
    /// Its class is of no driver that is local.
    OtherDriver,
    /// The pool of its class survives its node.
    PersistentPool,
    /// There is more than one copy.
    Replicated,
}

/// Whether the claim is under the rule. A local volume counts whatever the claim's class is: that is where the data will be.
#[must_use]
pub fn standing(seen: &Observation) -> Standing<'_> {
    let by_class = by_class(seen);
    if let Standing::Governed { .. } = by_class {
        return by_class;
    }
    let mut volumes = seen.named_volume.known().map(AsRef::as_ref).into_iter().chain(&seen.volumes);
    volumes.find_map(|offered| of_volume(&seen.settings, offered)).unwrap_or(by_class)
}

fn by_class(seen: &Observation) -> Standing<'_> {
    match &seen.class {
        Look::NotNamed => Standing::Exempt(Exempt::NoClass),
        Look::Known(class) => of_class(&seen.settings, class),
        Look::NotCached | Look::Missing | Look::Failed => Standing::Exempt(Exempt::ClassNotFound),
    }
}

fn of_volume<'a>(settings: &'a Settings, Offered { volume, class }: &'a Offered) -> Option<Standing<'a>> {
    // The class knows more about the volume than the volume itself: pool, copies, the administrator's word.
    let knows =
        |class: &&Arc<Class>| matches!(word(class), Some("true" | "false")) || class.provisioner == volume.driver;
    let standing = match class.as_ref().filter(knows) {
        Some(class) => of_class(settings, class),
        None => governed(settings.drivers.iter().find(|driver| driver.name == *volume.driver)?),
    };
    match standing {
        Standing::Governed { driver, accept_annotation, .. } => {
            Some(Standing::Governed { driver, accept_annotation, volume: Some(volume.key.name()) })
        }
        Standing::Exempt(_) => None,
    }
}

fn governed(driver: &Driver) -> Standing<'_> {
    Standing::Governed { driver: &driver.name, accept_annotation: &driver.accept_annotation, volume: None }
}

fn word(class: &Class) -> Option<&str> {
    class.annotations.get(EPHEMERAL_ONLY).map(String::as_str)
}

fn of_class<'a>(settings: &'a Settings, class: &'a Class) -> Standing<'a> {
    let driver = settings.drivers.iter().find(|driver| driver.name == *class.provisioner);
    match (word(class), driver) {
        (Some("false"), _) => Standing::Exempt(Exempt::ByAnnotation),
        (Some("true"), Some(driver)) => governed(driver),
        (Some("true"), None) => {
            Standing::Governed { driver: &class.provisioner, accept_annotation: ACCEPT, volume: None }
        }
        (_, None) => Standing::Exempt(Exempt::OtherDriver),
        (_, Some(driver)) if !is_ephemeral_pool(driver, class) => Standing::Exempt(Exempt::PersistentPool),
        (_, Some(driver)) if is_replicated(driver, class) => Standing::Exempt(Exempt::Replicated),
        (_, Some(driver)) => governed(driver),
    }
}

fn is_ephemeral_pool(driver: &Driver, class: &Class) -> bool {
    let pool = driver.pool_parameter.as_ref().and_then(|parameter| class.parameters.get(parameter));
    driver.ephemeral_pools.is_empty()
        || driver.ephemeral_pools.iter().any(|known| known == pool.map_or("", |pool| pool))
}

/// Only a plain number counts: what a driver makes of anything else nobody knows.
fn is_replicated(driver: &Driver, class: &Class) -> bool {
    let copies = driver.replicas_parameter.as_ref().and_then(|parameter| class.parameters.get(parameter));
    copies
        .is_some_and(|copies| copies.bytes().all(|digit| digit.is_ascii_digit()) && copies.parse().unwrap_or(0_u32) > 1)
}

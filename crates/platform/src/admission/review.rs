//! `AdmissionReview` v1, as far as we read and write it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// What the API server asks. It borrows from the body: the objects in it are decoded by whoever reads them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// Names this one call; the answer repeats it.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// What kind of object it is about.
    #[serde(borrow)]
    pub kind: Kind<'a>,
    /// The part of the object that is written, such as `status`; empty for the object itself.
    #[serde(borrow, default)]
    pub sub_resource: Cow<'a, str>,
    /// The object's name; empty if the API server has yet to make it from `generateName`.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// The object's namespace; empty if it has none.
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    /// What is done with it.
    pub operation: Operation,
    /// Who asks for it.
    #[serde(borrow, default)]
    pub user_info: User<'a>,
    /// Whether nothing will be written in any case.
    #[serde(default)]
    pub dry_run: bool,
    /// The object as it is to become.
    #[serde(borrow)]
    pub object: Option<&'a RawValue>,
    /// The object as it was.
    #[serde(borrow)]
    pub old_object: Option<&'a RawValue>,
}

/// Group, version and kind of an object.
#[derive(Debug, Deserialize)]
pub struct Kind<'a> {
    /// Empty for the core group.
    #[serde(borrow, default)]
    pub group: Cow<'a, str>,
    /// Such as `v1`.
    #[serde(borrow)]
    pub version: Cow<'a, str>,
    /// Such as `PersistentVolumeClaim`.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
}

/// Who asks.
#[derive(Debug, Default, Deserialize)]
pub struct User<'a> {
    /// Such as `system:serviceaccount:kube-system:persistent-volume-binder`.
    #[serde(borrow, default)]
    pub username: Cow<'a, str>,
}

/// What is done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is removed.
    Delete,
    /// It is connected to.
    Connect,
}

/// What we say to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether it may happen.
    pub allowed: bool,
    /// The HTTP code of a refusal.
    pub code: u16,
    /// The stable code of the decision, for `status.details`; the metric and the audit annotation carry the same.
    pub reason: &'static str,
    /// The sentence for the person who asked.
    pub message: Cow<'static, str>,
    /// What that person is warned of; kubectl prints them.
    pub warnings: Vec<String>,
    /// What the API server's audit log keeps of it: key without the webhook's name, and value.
    pub audit: Vec<(&'static str, String)>,
    /// The JSON patch to apply, already written.
    pub patch: Option<Vec<u8>>,
}

impl Answer {
    /// It may happen.
    pub fn allow(reason: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { allowed: true, code: 200, reason, message: message.into(), warnings: vec![], audit: vec![], patch: None }
    }

    /// It may not.
    pub fn deny(reason: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { allowed: false, code: 403, ..Self::allow(reason, message) }
    }
}

//! A pod as the API server sends it, as far as it is read to tell it where to run: everything else is skipped, and what is kept is
//! borrowed.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// The annotation by which the author of a pod keeps us away.
pub const PLACEMENT: &str = "claimkeeper.dev/placement";

/// What it says then.
pub const IGNORE: &str = "ignore";

/// The annotation of pods that a kubelet has from its own files: the API server only shows them.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod as somebody wants it to be.
#[derive(Debug, Deserialize)]
pub struct AskedPod<'a> {
    /// Who it is.
    #[serde(borrow, default)]
    pub metadata: Metadata<'a>,
    /// What it wants.
    #[serde(borrow, default)]
    pub spec: Spec<'a>,
}

/// Who a pod is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    /// Its name; none if the API server has yet to make it.
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
    /// What its name is made from.
    #[serde(borrow)]
    pub generate_name: Option<Text<'a>>,
    /// Which pod it is; none as long as it does not exist.
    #[serde(borrow)]
    pub uid: Option<Text<'a>>,
    /// Which version of it this is; none as long as it does not exist.
    #[serde(borrow)]
    pub resource_version: Option<Text<'a>>,
    /// To whom it belongs.
    pub owner_references: Option<Vec<Owner>>,
    /// What its annotations say to us.
    #[serde(default)]
    pub annotations: Words,
}

/// To whom a pod belongs.
#[derive(Debug, Deserialize)]
pub struct Owner {
    /// Whether that is who makes it anew when it is deleted.
    pub controller: Option<bool>,
}

/// What a pod wants.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec<'a> {
    /// Where it is to run, if somebody has chosen already.
    #[serde(borrow)]
    pub node_name: Option<Text<'a>>,
    /// Its volumes.
    #[serde(borrow)]
    pub volumes: Option<Vec<PodVolume<'a>>>,
    /// Where its author wants it to run.
    #[serde(borrow)]
    pub affinity: Option<Affinity<'a>>,
    /// What it waits for before anybody looks for a node.
    #[serde(borrow)]
    pub scheduling_gates: Option<Vec<Gate<'a>>>,
}

/// A volume of a pod.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodVolume<'a> {
    /// Its name within the pod.
    #[serde(borrow, default)]
    pub name: Text<'a>,
    /// The claim that it calls by name.
    #[serde(borrow)]
    pub persistent_volume_claim: Option<UsedClaim<'a>>,
    /// Whether its claim is made for the pod.
    pub ephemeral: Option<IgnoredAny>,
}

/// A claim called by name.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsedClaim<'a> {
    /// The name.
    #[serde(borrow, default)]
    pub claim_name: Text<'a>,
}

/// Where a pod is to run. Other pods do not matter here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity<'a> {
    /// On which nodes.
    #[serde(borrow)]
    pub node_affinity: Option<NodeAffinity<'a>>,
}

/// On which nodes a pod is to run.
#[derive(Debug, Deserialize)]
pub struct NodeAffinity<'a> {
    /// On which it must.
    #[serde(borrow, rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<Selector<'a>>,
    /// On which it should.
    #[serde(borrow, rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Option<Vec<Preferred<'a>>>,
}

/// Nodes that match any of these terms.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selector<'a> {
    /// The terms.
    #[serde(borrow)]
    pub node_selector_terms: Option<Vec<Term<'a>>>,
}

/// Nodes that match all of these requirements; without any, no node.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Term<'a> {
    /// About labels.
    #[serde(borrow)]
    pub match_expressions: Option<Vec<Requirement<'a>>>,
    /// About the name.
    #[serde(borrow)]
    pub match_fields: Option<Vec<Requirement<'a>>>,
}

impl Term<'_> {
    /// Whether it matches no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        [&self.match_expressions, &self.match_fields].into_iter().flatten().all(Vec::is_empty)
    }
}

/// A requirement of a term.
#[derive(Debug, Deserialize)]
pub struct Requirement<'a> {
    /// The label, or the field.
    #[serde(borrow, default)]
    pub key: Text<'a>,
    /// How it is compared.
    #[serde(borrow, default)]
    pub operator: Text<'a>,
    /// With what.
    #[serde(borrow)]
    pub values: Option<Vec<Text<'a>>>,
}

/// A term that is only wished for.
#[derive(Debug, Deserialize)]
pub struct Preferred<'a> {
    /// How much.
    #[serde(default)]
    pub weight: i64,
    /// The term.
    #[serde(borrow, default)]
    pub preference: Term<'a>,
}

/// What a pod waits for.
#[derive(Debug, Deserialize)]
pub struct Gate<'a> {
    /// Its name.
    #[serde(borrow, default)]
    pub name: Text<'a>,
}

/// Text that is borrowed unless it has escapes.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// What annotations say to us.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// The pod is to be left alone.
    pub ignore: bool,
    /// A kubelet has the pod already.
    pub mirror: bool,
}

impl<'a> AskedPod<'a> {
    /// Reads it.
    pub fn read(json: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Its name; none if the API server has yet to make it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        text(self.metadata.name.as_ref())
    }

    /// Which pod it is, if it exists.
    #[must_use]
    pub fn uid(&self) -> Option<&str> {
        text(self.metadata.uid.as_ref())
    }

    /// Which version of it this is, if it exists.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        text(self.metadata.resource_version.as_ref())
    }

    /// Whether somebody makes it anew when it is deleted.
    #[must_use]
    pub fn has_controller(&self) -> bool {
        self.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
    }

    /// What to call it: its name, or what that is made from.
    #[must_use]
    pub fn called(&self) -> &str {
        self.name().or_else(|| text(self.metadata.generate_name.as_ref())).unwrap_or_default()
    }

    /// Whether somebody has chosen its node.
    #[must_use]
    pub fn has_node(&self) -> bool {
        text(self.spec.node_name.as_ref()).is_some()
    }

    /// Its volumes.
    #[must_use]
    pub fn volumes(&self) -> &[PodVolume<'a>] {
        self.spec.volumes.as_deref().unwrap_or_default()
    }
}

fn text<'t>(text: Option<&'t Text<'_>>) -> Option<&'t str> {
    text.map(|Text(text)| &**text).filter(|text| !text.is_empty())
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Listen;
        impl<'de> Visitor<'de> for Listen {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_unit<E>(self) -> Result<Words, E> {
                Ok(Words::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Words, A::Error> {
                let mut words = Words::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        PLACEMENT => words.ignore = map.next_value::<Text<'_>>()?.0 == IGNORE,
                        MIRROR => {
                            map.next_value::<IgnoredAny>()?;
                            words.mirror = true;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(words)
            }
        }
        deserializer.deserialize_any(Listen)
    }
}

//! From the administrator's template to the Job that cleans one volume.

use cluster::{ObjectKey, Volume};
use k8s_openapi::{api::core::v1::PodTemplate, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;
use serde_json::{Value, json};

use super::SCRUB;

/// The name of the volume in the template's pod: whatever it is there, in the Job it is the volume to be cleaned.
const VOLUME: &str = "volume";
/// On a template: how often its pod is tried again when it failed.
const RETRIES: &str = "claimkeeper.dev/scrub-retries";
/// A scrub does no harm when it is done twice, and most failures pass.
const DEFAULT_RETRIES: u8 = 2;
/// More is no help, and each waits longer than the one before.
const MOST_RETRIES: u8 = 3;
/// For templates without `activeDeadlineSeconds`: a pod that finds no node for a day is worth telling.
const DEFAULT_DEADLINE_SECONDS: i64 = 24 * 60 * 60;

/// A template as the API server has it. Its pod is kept word for word: fields that we do not know are the administrator's.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PodTemplate)]
pub(super) struct TemplateWire {
    metadata: ObjectMeta,
    #[serde(default)]
    template: Value,
}

/// A template of which a Job can be made.
#[derive(Debug)]
pub(super) struct Template {
    pod: Value,
    retries: u8,
}

impl Template {
    /// Checks what Kubernetes would not: that the pod cleans this kind of volume, and all of it.
    pub(super) fn check(TemplateWire { metadata, template }: TemplateWire, volume: &Volume) -> Result<Self, String> {
        let spec = &template["spec"];
        let block = &*volume.offer.mode == "Block";
        let (wanted, other) = if block { ("volumeDevices", "volumeMounts") } else { ("volumeMounts", "volumeDevices") };
        if !mounts(spec, other).is_empty() {
            let mode = &volume.offer.mode;
            return Err(format!("its {other} name `{VOLUME}`, but this is a {mode} volume, which belongs in {wanted}"));
        }
        let [mount] = mounts(spec, wanted)[..] else {
            return Err(format!("exactly one of its containers must have a volume named `{VOLUME}` in its {wanted}"));
        };
        if mount["readOnly"] == true || ["subPath", "subPathExpr"].iter().any(|part| mount[part].is_string()) {
            return Err(format!("it must mount `{VOLUME}` as a whole and not read-only, or something stays on it"));
        }
        let retries = metadata.annotations.unwrap_or_default().remove(RETRIES);
        let retries = retries.map_or(Ok(DEFAULT_RETRIES), |text| {
            let retries = text.parse().ok().filter(|retries| *retries <= MOST_RETRIES);
            retries.ok_or_else(|| format!("its annotation {RETRIES} is `{text}`, but must be 0 to {MOST_RETRIES}"))
        })?;
        Ok(Self { pod: template, retries })
    }

    /// The Job that cleans the volume of this scrub claim. It ends with the claim.
    pub(super) fn job(self, volume: &Volume, claim: &ObjectKey, claim_uid: &str) -> Value {
        let Self { mut pod, retries } = self;
        let spec = &mut pod["spec"];
        let deadline = spec.as_object_mut().and_then(|spec| spec.remove("activeDeadlineSeconds"));
        // What templates have by default, and Jobs must not.
        if spec["restartPolicy"] == "Always" {
            spec["restartPolicy"] = "Never".into();
        }
        let others = spec["volumes"].as_array().into_iter().flatten().filter(|other| other["name"] != VOLUME);
        let own = json!({"name": VOLUME, "persistentVolumeClaim": {"claimName": claim.name()}});
        spec["volumes"] = others.cloned().chain([own]).collect();
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "namespace": claim.namespace(),
                "name": claim.name(),
                "labels": {SCRUB: volume.uid},
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": claim.name(),
                    "uid": claim_uid,
                    "controller": true,
                }],
            },
            "spec": {
                "backoffLimit": retries,
                "activeDeadlineSeconds": deadline.filter(Value::is_number).unwrap_or_else(|| DEFAULT_DEADLINE_SECONDS.into()),
                "template": pod,
            },
        })
    }
}

/// The mounts, or devices, of the volume in all containers.
fn mounts<'a>(spec: &'a Value, kind: &str) -> Vec<&'a Value> {
    let containers = ["initContainers", "containers"].into_iter().filter_map(|list| spec[list].as_array());
    let mounts = containers.flatten().filter_map(|container| container[kind].as_array()).flatten();
    mounts.filter(|mount| mount["name"] == VOLUME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{volume, volume_with};

    fn template(change: &Value) -> TemplateWire {
        let mut json = json!({
            "metadata": {"name": "wipe", "annotations": {}},
            "template": {"spec": {
                "restartPolicy": "Always",
                "containers": [{"name": "wipe", "volumeMounts": [{"name": "volume", "mountPath": "/volume"}]}],
                "volumes": [{"name": "tools", "emptyDir": {}}, {"name": "volume", "emptyDir": {}}],
            }},
        });
        json_patch::merge(&mut json, change);
        serde_json::from_value(json).unwrap()
    }

    fn containers(containers: &Value) -> TemplateWire {
        template(&json!({"template": {"spec": {"containers": containers}}}))
    }

    #[test]
    fn the_volume_takes_the_place_that_the_template_has_for_it() {
        let template = template(&json!({"template": {"spec": {"activeDeadlineSeconds": 60, "newer": "field"}}}));
        let job =
            Template::check(template, &volume()).unwrap().job(&volume(), &ObjectKey::new("ops", "scrub-v1"), "c9");
        let spec = &job["spec"]["template"]["spec"];
        let own = json!({"name": "volume", "persistentVolumeClaim": {"claimName": "scrub-v1"}});
        assert_eq!(spec["volumes"], json!([{"name": "tools", "emptyDir": {}}, own]));
        assert_eq!((&spec["restartPolicy"], &spec["newer"]), (&json!("Never"), &json!("field")));
        assert_eq!((&job["spec"]["activeDeadlineSeconds"], &job["spec"]["backoffLimit"]), (&json!(60), &json!(2)));
        assert_eq!(spec["activeDeadlineSeconds"], Value::Null, "the time is the Job's, not that of each try");
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "c9");
    }

    #[test]
    fn a_template_that_would_leave_something_on_the_volume_is_refused() {
        let mount = json!({"name": "volume", "mountPath": "/volume"});
        let device = json!({"name": "volume", "devicePath": "/dev/volume"});
        let block = volume_with(&json!({"spec": {"volumeMode": "Block"}}));
        let part = json!({"name": "volume", "mountPath": "/volume", "subPath": "x"});
        let read_only = json!({"name": "volume", "mountPath": "/volume", "readOnly": true});
        for (list, volume, words) in [
            (json!([{"name": "a"}]), volume(), "exactly one"),
            (
                json!([{"name": "a", "volumeMounts": [mount]}, {"name": "b", "volumeMounts": [mount]}]),
                volume(),
                "exactly one",
            ),
            (json!([{"name": "a", "volumeDevices": [device]}]), volume(), "a Filesystem volume"),
            (json!([{"name": "a", "volumeMounts": [mount]}]), block.clone(), "a Block volume"),
            (json!([{"name": "a", "volumeMounts": [part]}]), volume(), "as a whole"),
            (json!([{"name": "a", "volumeMounts": [read_only]}]), volume(), "not read-only"),
        ] {
            let refused = Template::check(containers(&list), &volume).unwrap_err();
            assert!(refused.contains(words), "{list}: {refused}");
        }
        assert!(Template::check(containers(&json!([{"name": "a", "volumeDevices": [device]}])), &block).is_ok());
    }

    #[test]
    fn a_template_says_how_often_it_is_tried_again() {
        let retries = |text: &str| {
            let annotated = template(&json!({"metadata": {"annotations": {RETRIES: text}}}));
            Template::check(annotated, &volume()).map(|template| template.retries)
        };
        assert_eq!((retries("0"), retries("3")), (Ok(0), Ok(3)));
        for wrong in ["4", "-1", "", "often"] {
            assert!(retries(wrong).unwrap_err().ends_with("must be 0 to 3"), "{wrong}");
        }
    }
}

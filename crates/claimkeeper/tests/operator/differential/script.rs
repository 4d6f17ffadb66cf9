//! What is done to both clusters: a random story, the same for the same seed.
//!
//! Each step starts from a settled state, and no step has an outcome that depends on who is faster. That is why a quota leaves
//! room for everything or for nothing, and why no two pods want a claim of the same name.

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::verdict::View;

const PODS: [&str; 4] = ["web", "api", "batch", "db"];
const VOLUMES: [&str; 3] = ["scratch", "cache", "data"];
/// More than all of them need. (A thousand would come back as `1k`.)
const ROOM: u32 = 999;

/// One thing that a user does.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    CreatePod(Plan),
    DeletePod(&'static str),
    /// The next pod of the name comes at once.
    ReplacePod(Plan),
    /// A finalizer keeps the pod in sight.
    HoldAndDeletePod(&'static str),
    LetPodGo(&'static str),
    EndPod(&'static str, &'static str),
    CreateForeignClaim(String),
    DeleteClaim(String),
    HoldAndDeleteClaim(String),
    LetClaimGo(String),
    /// Labels and annotations of an existing claim are its user's to change.
    RelabelClaim(String),
    LimitClaims {
        to: u32,
    },
}

/// A pod to be.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// A pod that is never scheduled keeps its claims from being protected.
    gated: bool,
    volumes: Vec<(&'static str, Value)>,
}

pub(crate) struct Script {
    random: StdRng,
    closed: bool,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), closed: false }
    }

    /// Whether a quota keeps all new claims out.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// One of the steps that make sense now.
    pub(crate) fn next(&mut self, view: &View) -> Step {
        let mut steps = self.steps_of_pods(view);
        steps.extend(self.steps_of_claims(view));
        steps.push(Step::LimitClaims { to: if self.closed { ROOM } else { 0 } });
        if self.closed {
            // The original waits twice as long as the quota lasted.
            steps.extend(vec![Step::LimitClaims { to: ROOM }; 8]);
        }
        let step = steps.choose(&mut self.random).cloned().unwrap_or(Step::LimitClaims { to: ROOM });
        if let Step::LimitClaims { to } = step {
            self.closed = to == 0;
        }
        step
    }

    fn steps_of_pods(&mut self, view: &View) -> Vec<Step> {
        let mut steps = Vec::new();
        for name in PODS {
            match view.pods.get(name) {
                None => steps.extend([Step::CreatePod(self.plan(name)), Step::CreatePod(self.plan(name))]),
                Some(pod) if pod.leaving => steps.push(Step::LetPodGo(name)),
                Some(pod) => {
                    steps.extend([Step::DeletePod(name), Step::HoldAndDeletePod(name)]);
                    // Not on a node: whoever plays the kubelet there deletes by name, and may hit the next pod instead.
                    if !pod.scheduled {
                        steps.push(Step::ReplacePod(self.plan(name)));
                    }
                    if !pod.ended {
                        steps.push(Step::EndPod(name, if self.random.random() { "Succeeded" } else { "Failed" }));
                    }
                }
            }
        }
        steps
    }

    fn steps_of_claims(&mut self, view: &View) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, claim) in &view.common {
            match (claim.leaving, claim.is_held()) {
                (true, true) => steps.extend([Step::LetClaimGo(name.clone()), Step::LetClaimGo(name.clone())]),
                (true, false) => {}
                (false, _) => steps.extend([
                    Step::DeleteClaim(name.clone()),
                    Step::HoldAndDeleteClaim(name.clone()),
                    Step::RelabelClaim(name.clone()),
                ]),
            }
        }
        let absent: BTreeSet<&str> = PODS.into_iter().filter(|pod| !view.pods.contains_key(*pod)).collect();
        let free = absent.iter().flat_map(|pod| VOLUMES.map(|volume| format!("{pod}-{volume}")));
        let free: Vec<String> = free.filter(|name| !view.taken.contains(name)).collect();
        if !self.closed {
            steps.extend(free.sample(&mut self.random, 2).cloned().map(Step::CreateForeignClaim));
        }
        steps
    }

    fn plan(&mut self, name: &'static str) -> Plan {
        let gated = self.random.random_ratio(2, 3);
        let count = self.random.random_range(1..=VOLUMES.len());
        let mut names: Vec<&'static str> = VOLUMES.sample(&mut self.random, count).copied().collect();
        names.sort_by_key(|_| self.random.random::<u32>());
        let volumes = names.into_iter().map(|name| (name, self.template(gated))).collect();
        Plan { name, gated, volumes }
    }

    fn template(&mut self, gated: bool) -> Value {
        let class = if self.random.random() { "testbed-wait" } else { "testbed-immediate" };
        let size = format!("{}Mi", self.random.random_range(1..5000));
        let mut template = json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}},
        }});
        if self.random.random() {
            let label = self.random.random::<u16>().to_string();
            template["metadata"] = json!({"labels": {"app": "shop", "number": label}});
        }
        if self.random.random() {
            template["metadata"]["annotations"] =
                json!({"example.dev/note": "Größe: \"1\"\n", "example.dev/empty": ""});
        }
        // Nobody provides such volumes, so only pods that wait for ever may ask for them.
        if gated {
            let odd = [
                json!({}),
                json!({"accessModes": ["ReadWriteMany", "ReadOnlyMany"], "storageClassName": "nowhere"}),
                json!({"storageClassName": "", "selector": {"matchLabels": {"disk": "fast"}}, "volumeMode": "Block"}),
                json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "origin"}}),
                json!({"volumeName": "by-name", "volumeAttributesClassName": "gold"}),
                json!({"resources": {"requests": {"storage": "1"}, "limits": {"storage": "1500000k"}}}),
            ];
            for (key, value) in odd.choose(&mut self.random).and_then(Value::as_object).into_iter().flatten() {
                template["spec"][key] = value.clone();
            }
        }
        template
    }
}

impl Plan {
    pub(crate) fn pod(&self) -> Value {
        let volume =
            |(name, template): &(&str, Value)| json!({"name": name, "ephemeral": {"volumeClaimTemplate": template}});
        let gates = if self.gated { json!([{"name": "example.dev/never"}]) } else { json!([]) };
        json!({
            "metadata": {"name": self.name},
            "spec": {
                "schedulingGates": gates,
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": self.volumes.iter().map(volume).collect::<Vec<_>>(),
            },
        })
    }
}

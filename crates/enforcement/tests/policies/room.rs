//! One API server with all that the rows are about, and policies for every configuration in the table.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use enforcement::policy::{Policy, policies};
use futures::{StreamExt, TryStreamExt, stream};
use http::{Method, Request};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{Namespace, PersistentVolumeClaim, Pod, ServiceAccount},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::Body,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::{AuditLog, AuditedRequest, Cluster, eventually};

use crate::table::{Row, Table};

/// The label by which a namespace is under the policies of one configuration.
const CONFIGURATION: &str = "test.claimkeeper.dev/configuration";

/// Where what is decided last tells that everything before it is known.
const LAST: &str = "last";

/// Requests at once.
const CONCURRENCY: usize = 8;

/// What became of a row.
pub(crate) struct Verdict {
    pub(crate) action: &'static str,
    /// What the policy that counts has noted.
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
}

pub(crate) struct Room {
    client: Client,
    audit_log: AuditLog,
    /// The rows' requests, whose uids are known only now.
    asked: Vec<Asked>,
}

struct Asked {
    namespace: String,
    claim: Value,
    update: bool,
}

impl Room {
    /// Makes everything that the rows need, the claims that are to be changed before there is a policy.
    pub(crate) async fn furnish(cluster: Cluster, table: &Table, rows: &[&Row]) -> Result<Self> {
        let client = cluster.admin().await?;
        for name in table.classes.keys() {
            create::<StorageClass>(&Api::all(client.clone()), table.class(name, false)).await?;
        }
        let configurations = configurations(rows);
        let name_of = |row: usize| {
            let position = configurations.iter().position(|members| members.contains(&row));
            format!("configuration-{}", position.unwrap())
        };
        let prepared = rows.iter().enumerate().map(|(number, row)| {
            let (client, configuration) = (client.clone(), name_of(number));
            async move {
                prepare(&client, table, row, &namespace_of(number), &configuration).await.context(row.name.clone())
            }
        });
        let asked = stream::iter(prepared).buffered(CONCURRENCY).try_collect().await?;
        let room = Self { client, audit_log: cluster.audit_log(), asked };
        for first in configurations.iter().filter_map(|members| members.first()) {
            let settings = rows[*first].settings(&namespace_of(*first));
            room.install(&name_of(*first), &policies(&settings)).await?;
        }
        room.install_last().await?;
        Ok(room)
    }

    async fn install(&self, configuration: &str, policies: &[Policy]) -> Result<()> {
        for Policy { name, spec, validation_actions, spares } in policies {
            let name = format!("{name}.{configuration}");
            let spec: Value = serde_saphyr::from_str(spec)?;
            let policy = json!({"metadata": {"name": name}, "spec": spec});
            create::<ValidatingAdmissionPolicy>(&Api::all(self.client.clone()), policy).await?;
            let but = json!([{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [spares]}]);
            let binding = json!({"metadata": {"name": name}, "spec": {
                "policyName": name,
                "validationActions": validation_actions,
                "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
                "matchResources": {"namespaceSelector": {
                    "matchLabels": {CONFIGURATION: configuration},
                    "matchExpressions": spares.as_ref().map(|_| but),
                }},
            }});
            create::<ValidatingAdmissionPolicyBinding>(&Api::all(self.client.clone()), binding).await?;
        }
        Ok(())
    }

    /// The API server learns of policies, of bindings and of classes in the order in which they are made: once it knows the last
    /// one of each, it knows them all.
    async fn install_last(&self) -> Result<()> {
        let namespace = json!({"metadata": {"name": LAST, "labels": {CONFIGURATION: LAST}}});
        create::<Namespace>(&Api::all(self.client.clone()), namespace).await?;
        let class = json!({"metadata": {"name": LAST}, "provisioner": "localdisk.csi.acstor.io"});
        create::<StorageClass>(&Api::all(self.client.clone()), class).await?;
        self.install(LAST, &policies(&enforcement::Settings::default())).await?;
        eventually("the last policy to count", async || match self.try_out(Some(LAST)).await {
            Err(kube::Error::Api(status)) if status.message.contains("denied request: only generic") => Ok(()),
            other => bail!("{other:?}"),
        })
        .await
    }

    /// Asks for a claim without leaving one behind.
    async fn try_out(&self, class: Option<&str>) -> kube::Result<PersistentVolumeClaim> {
        let claim = json!({"metadata": {"name": "data"}, "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }});
        let claim = serde_json::from_value(claim).unwrap();
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        Api::namespaced(self.client.clone(), LAST).create(&parameters, &claim).await
    }

    /// Makes a class the default, or not the default any more, and returns once that counts.
    pub(crate) async fn make_default(&self, class: &str, is_default: bool) -> Result<()> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": is_default.to_string()});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        classes.patch(class, &PatchParams::default(), &patch).await?;
        let last: Api<Namespace> = Api::all(self.client.clone());
        // Whatever the default is, the probe must pass.
        let audit = Patch::Merge(json!({"metadata": {"labels": {CONFIGURATION: "none"}}}));
        last.patch(LAST, &PatchParams::default(), &audit).await?;
        eventually("the default class to count", async || {
            let given = self.try_out(None).await?.spec.and_then(|spec| spec.storage_class_name);
            ensure!((given.as_deref() == Some(class)) == is_default, "{given:?}");
            Ok(())
        })
        .await
    }

    /// Makes the requests of these rows.
    pub(crate) async fn ask_all(&self, rows: &[&Row], numbers: &[usize]) -> Result<()> {
        let requests = numbers.iter().map(|number| self.ask(rows[*number], &self.asked[*number]));
        stream::iter(requests).buffer_unordered(CONCURRENCY).try_collect().await
    }

    async fn ask(&self, row: &Row, Asked { namespace, claim, update }: &Asked) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        let name = claim["metadata"]["name"].as_str().unwrap();
        let (method, path) = if *update { (Method::PUT, format!("{path}/{name}")) } else { (Method::POST, path) };
        let query = if row.dry_run { "?dryRun=All" } else { "" };
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}{query}"))
            .header("Content-Type", "application/json")
            .header("Impersonate-User", &row.user)
            // May do everything, so that nothing but the policies decides.
            .header("Impersonate-Group", "system:masters")
            .body(Body::from(claim.to_string().into_bytes()))?;
        let answer = self.client.send(request).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect_bytes().await?;
        let refused = head.status == 403 && body.windows(15).any(|words| words == b"denied request:");
        let text = String::from_utf8_lossy(&body);
        ensure!(head.status.is_success() || refused, "{}: {} {text}", row.name, head.status);
        let mut warnings = head.headers.get_all("warning").iter().filter_map(|warning| warning.to_str().ok());
        let warned = warnings.any(|warning| warning.contains("claims-warn."));
        ensure!(warned == (row.expected_of_policies() == "warn"), "{}: warned: {warned}", row.name);
        Ok(())
    }

    /// What the audit log says about the rows' requests.
    pub(crate) async fn verdicts(&self, rows: usize) -> Result<Vec<Verdict>> {
        let requests = eventually("all requests to be in the audit log", async || self.logged(rows)).await?;
        Ok(requests.iter().map(verdict).collect())
    }

    fn logged(&self, rows: usize) -> Result<Vec<AuditedRequest>> {
        let mut of_rows = BTreeMap::new();
        for request in self.audit_log.clone().resource("persistentvolumeclaims").requests()? {
            let namespace = request.object_ref.as_ref().map(|object| object.namespace.clone()).unwrap_or_default();
            let Some(number) = namespace.strip_prefix("row-").and_then(|number| number.parse::<usize>().ok()) else {
                continue;
            };
            // The last one: those before it made what it changes.
            of_rows.insert(number, request);
        }
        for (number, asked) in self.asked.iter().enumerate() {
            let verb = if asked.update { "update" } else { "create" };
            let found = of_rows.get(&number).is_some_and(|request| request.verb == verb);
            ensure!(found, "row {number} is missing");
        }
        ensure!(of_rows.len() == rows, "{} of {rows}", of_rows.len());
        Ok(of_rows.into_values().collect())
    }
}

fn namespace_of(row: usize) -> String {
    format!("row-{row}")
}

/// The rows of each configuration. Who is in the operator's own namespace has one alone.
fn configurations(rows: &[&Row]) -> Vec<Vec<usize>> {
    let mut known: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        let own = if row.home { namespace_of(number) } else { String::new() };
        known.entry(format!("{own}{}", row.written_settings())).or_default().push(number);
    }
    known.into_values().collect()
}

/// Makes a row's namespace, its pods, and the claim that is to be changed.
async fn prepare(client: &Client, table: &Table, row: &Row, namespace: &str, configuration: &str) -> Result<Asked> {
    // With its labels from the start: the API server may not hear of a change in time.
    let mut labels = BTreeMap::from([(CONFIGURATION, configuration)]);
    labels.extend(row.label.iter().map(|label| ("claimkeeper.dev/enforcement", label.as_str())));
    let home = json!({"metadata": {"name": namespace, "labels": labels}});
    create::<Namespace>(&Api::all(client.clone()), home).await?;
    let account = json!({"metadata": {"name": "default"}});
    create::<ServiceAccount>(&Api::namespaced(client.clone(), namespace), account).await?;
    let mut uids = BTreeMap::new();
    for name in &row.pods {
        let pod = create::<Pod>(&Api::namespaced(client.clone(), namespace), table.pod(name, namespace)).await?;
        uids.insert(name.as_str(), pod.uid().unwrap());
    }
    let uid = |pod: &str| uids.get(pod).cloned();
    let mut claim = row.claim(namespace, &uid);
    let Some(old) = row.old(namespace, &uid) else {
        return Ok(Asked { namespace: namespace.to_owned(), claim, update: false });
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let mut old = create(&claims, old).await?;
    if row.terminating {
        // It stays because of the finalizer that the API server gives to every claim.
        claims.delete(&old.name_any(), &DeleteParams::default()).await?;
        old = claims.get(&old.name_any()).await?;
    }
    claim["metadata"]["uid"] = json!(old.uid());
    claim["metadata"]["resourceVersion"] = json!(old.resource_version());
    Ok(Asked { namespace: namespace.to_owned(), claim, update: true })
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object.clone()).with_context(|| object.to_string())?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

fn verdict(request: &AuditedRequest) -> Verdict {
    let failures = request.annotations.get("validation.policy.admission.k8s.io/validation_failure");
    let failures: Vec<Value> = failures.map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
    let action = match &failures[..] {
        _ if request.code() == Some(403) => "deny",
        [] => "allow",
        [failure] if failure["validationActions"] == json!(["Warn", "Audit"]) => "warn",
        [failure] if failure["validationActions"] == json!(["Audit"]) => "audit",
        _ => "more than one thing",
    };
    let message = failures.first().and_then(|failure| failure["message"].as_str());
    let message = request
        .response_status
        .as_ref()
        .map(|response| response.message.as_str())
        .filter(|_| action == "deny")
        .or(message);
    let mut noted =
        request.annotations.iter().filter(|(key, _)| key.starts_with("claims-") && key.ends_with("/reason"));
    let reason = noted.next().map(|(_, reason)| reason.clone());
    Verdict { action, reason, message: message.unwrap_or_default().to_owned() }
}

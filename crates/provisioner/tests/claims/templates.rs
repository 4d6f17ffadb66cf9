//! Templates that nobody should get a claim for, shared by the tests of the parser and of the feature.

/// The example of the original's documentation.
pub(crate) const EXAMPLE: &str = "\
apiVersion: v1
kind: PersistentVolumeClaim
spec:
  storageClassName: reclaimable-storage-class
  resources:
    requests:
      storage: 1Gi
  accessModes:
    - ReadWriteOnce
";

/// The example with more in it: of the metadata, and of the spec.
pub(crate) fn with(metadata: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{{metadata}}}\n\
         spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}{spec}}}\n"
    )
}

/// What is refused, and a part of the sentence that must help.
#[allow(clippy::too_many_lines)] // a table
pub(crate) fn hostile() -> Vec<(String, &'static str)> {
    let plain = |text: &str| text.to_owned();
    vec![
        (plain(""), "it is empty"),
        (plain("   \n# nothing\n"), "it is empty"),
        (plain("null"), "it is empty"),
        (plain("a claim, please"), "not an object"),
        (plain("[1, 2]"), "not an object"),
        (plain("{"), "not valid YAML or JSON"),
        (plain("spec: {a: [}"), "not valid YAML or JSON: line 1"),
        (plain("\"\\q\""), "not valid YAML or JSON"),
        (plain("a:\n\t- b"), "not valid YAML or JSON"),
        (format!("{EXAMPLE}---\n{EXAMPLE}"), "several documents"),
        (format!("{EXAMPLE}---\napiVersion: v1\nkind: Secret\n"), "several documents"),
        (plain("spec: {}"), "it has no kind"),
        (plain("apiVersion: v1\nspec: {}"), "it has no kind"),
        (plain("apiVersion: v1\nkind: Secret"), "expected pvc, got: Secret"),
        (plain("apiVersion: v1\nkind: persistentvolumeclaim"), "expected pvc, got: persistentvolumeclaim"),
        (plain("apiVersion: v1\nkind: List\nitems: []"), "expected pvc, got: List"),
        (plain("apiVersion: v1\nkind: PersistentVolumeClaimList"), "expected pvc, got: PersistentVolumeClaimList"),
        (plain("apiVersion: v2\nkind: PersistentVolumeClaim"), "`v2`, but a claim's is v1"),
        (plain("apiVersion: apps/v1\nkind: PersistentVolumeClaim"), "`apps/v1`"),
        (plain("kind: PersistentVolumeClaim"), "a claim's is v1"),
        (plain("apiVersion: 1\nkind: PersistentVolumeClaim"), "a claim's is v1"),
        (plain("apiVersion: v1\nkind: PersistentVolumeClaim"), "it has no spec"),
        (plain("apiVersion: v1\nkind: PersistentVolumeClaim\nspec: nothing"), "spec must be a map"),
        (plain("apiVersion: v1\nkind: PersistentVolumeClaim\nspec: [a]"), "spec must be a map"),
        (plain("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: x\nspec: {}"), "metadata must be a map"),
        (format!("{EXAMPLE}apiVersion: v1\n"), "duplicate"),
        (with("", ", storageClassName: a, storageClassName: b"), "duplicate"),
        (plain(r#"{"kind": "Secret", "kind": "PersistentVolumeClaim", "apiVersion": "v1"}"#), "duplicate"),
        (format!("{EXAMPLE}stattus: {{}}\n"), "stattus is not a field of a claim; did you mean status?"),
        (format!("{EXAMPLE}items: []\n"), "items is not a field of a claim; known: apiVersion"),
        (format!("{EXAMPLE}status: {{phase: Bound}}\n"), "status is not for a template to say"),
        (
            with("", ", storageClasName: fast"),
            "spec.storageClasName is not a field of a claim; did you mean storageClassName?",
        ),
        (with("", ", accessmodes: [ReadWriteMany]"), "did you mean accessModes?"),
        (with("", ", <<: {volumeName: pv-1}"), "not valid YAML or JSON"),
        (with("lables: {a: b}", ""), "metadata.lables is not a field of a claim; did you mean labels?"),
        (with("finalizers: [example.dev/forever]", ""), "metadata.finalizers must not be set"),
        (with("generateName: a-", ""), "metadata.generateName must not be set"),
        (with("resourceVersion: '1'", ""), "metadata.resourceVersion must not be set"),
        (with("uid: u0", ""), "metadata.uid must not be set"),
        (with("managedFields: [{manager: x}]", ""), "metadata.managedFields must not be set"),
        (with("namespace: kube-system", ""), "metadata.namespace is not the pod's; the claim is made in ci"),
        (with("namespace: 7", ""), "metadata.namespace is not the pod's"),
        (with("labels: [a]", ""), "metadata.labels must be a map"),
        (with("annotations: text", ""), "metadata.annotations must be a map"),
        (with("labels: {a: true}", ""), "metadata.labels.a must be a string; put the value in quotes"),
        (with("labels: {a: 1}", ""), "metadata.labels.a must be a string"),
        (with("annotations: {a: null}", ""), "metadata.annotations.a must be a string"),
        (
            with("annotations: {volume.beta.kubernetes.io/storage-class: other}", ""),
            "reserved key volume.beta.kubernetes.io/",
        ),
        (
            with("annotations: {pv.kubernetes.io/bind-completed: 'yes'}", ""),
            "reserved key pv.kubernetes.io/bind-completed",
        ),
        (
            with("annotations: {volume.kubernetes.io/selected-node: n}", ""),
            "reserved key volume.kubernetes.io/selected-node",
        ),
        (with("annotations: {kubernetes.io/x: y}", ""), "reserved key kubernetes.io/x"),
        (with("annotations: {storage.k8s.io/x: y}", ""), "reserved key storage.k8s.io/x"),
        (with("annotations: {STORAGE.K8S.IO/x: y}", ""), "reserved key"),
        (with("labels: {claimkeeper.dev/release: pool}", ""), "reserved key claimkeeper.dev/release"),
        (
            with("labels: {dynamic-pvc-provisioner.kubernetes.io/managed-by: me}", ""),
            "reserved key dynamic-pvc-provisioner",
        ),
        (
            with("labels: {reclaimable-pv-releaser.kubernetes.io/managed-by: me}", ""),
            "reserved key reclaimable-pv-releaser",
        ),
        (with("", ", volumeName: pv-1"), "spec.volumeName is not allowed here"),
        (with("", ", selector: {matchLabels: {a: b}}"), "spec.selector is not allowed here"),
        (with("", ", dataSource: {kind: PersistentVolumeClaim, name: other}"), "spec.dataSource is not allowed here"),
        (
            with("", ", dataSourceRef: {kind: PersistentVolumeClaim, name: other, namespace: x}"),
            "spec.dataSourceRef is not allowed",
        ),
        (with("", ", storageClassName: true"), "spec.storageClassName must be a string"),
        (with("", ", storageClassName: [fast]"), "spec.storageClassName must be a string"),
        (with("", ", volumeMode: 1"), "spec.volumeMode must be a string"),
        (EXAMPLE.replace("    - ReadWriteOnce", "    []"), "spec.accessModes must be a list"),
        (EXAMPLE.replace("    - ReadWriteOnce", "    ReadWriteOnce"), "spec.accessModes must be a list"),
        (EXAMPLE.replace("    - ReadWriteOnce", "    - 1"), "spec.accessModes must be a list"),
        (EXAMPLE.replace("      storage: 1Gi", "      {}"), "spec.resources must be a map with requests.storage"),
        (EXAMPLE.replace("storage: 1Gi", "memory: 1Gi"), "spec.resources.requests.memory is not a field of a claim"),
        (EXAMPLE.replace("storage: 1Gi", "storage: [1]"), "spec.resources.requests.storage must be an amount"),
        (EXAMPLE.replace("requests:", "request:"), "did you mean requests?"),
        (format!("a: &a [x]\n{EXAMPLE}"), "not valid YAML or JSON"),
        (format!("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n{EXAMPLE}"), "not valid YAML or JSON"),
        (plain("&a {apiVersion: v1, kind: PersistentVolumeClaim, spec: *a}"), "not valid YAML or JSON"),
        (format!("{EXAMPLE}# {}", "x".repeat(1 << 20)), "bytes, but a template has"),
        ("[".repeat(4_000), "not valid YAML or JSON"),
        (format!("{{a: {}", "{a: ".repeat(500)), "not valid YAML or JSON"),
        (format!("list: [{}]", "1,".repeat(2_000)), "not valid YAML or JSON"),
        (with("labels: {? [complex, key] : x}", ""), "not valid YAML or JSON"),
        (with("annotations: {a: !!binary aGVsbG8=, b: !custom x, c: [}", ""), "not valid YAML or JSON"),
        (with("labels: {\"\\u0007\": 1}", ""), "must be a string"),
    ]
}

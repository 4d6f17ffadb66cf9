{{- define "claimkeeper.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "claimkeeper.lease" -}}
{{ .Values.leaderElection.name | default .Release.Name }}
{{- end }}

{{/* Whether API servers ask the operator about claims; empty if not. */}}
{{- define "claimkeeper.enforcementWebhook" -}}
{{ if and (has "enforcement" .Values.features) .Values.webhook.enforceEphemeral.enabled }}true{{ end }}
{{- end }}

{{/* Whether they ask it about pods; empty if not. */}}
{{- define "claimkeeper.placementWebhook" -}}
{{ if and (has "placement" .Values.features) .Values.webhook.hyperconverged.enabled }}true{{ end }}
{{- end }}

{{/* Whether they call it at all; empty if not. */}}
{{- define "claimkeeper.webhook" -}}
{{ if or (include "claimkeeper.enforcementWebhook" .) (include "claimkeeper.placementWebhook" .) }}true{{ end }}
{{- end }}

{{- define "claimkeeper.webhookService" -}}
{{ .Values.webhook.service | default (printf "%s-webhook" .Release.Name) }}
{{- end }}

{{- define "claimkeeper.enforcementConfiguration" -}}
{{ .Values.webhook.enforceEphemeral.configuration | default (printf "%s-enforcement" .Release.Name) }}
{{- end }}

{{- define "claimkeeper.placementConfiguration" -}}
{{ .Values.webhook.hyperconverged.configuration | default (printf "%s-placement" .Release.Name) }}
{{- end }}

{{/* How API servers reach the operator, and whom they trust: the root context, and the path. */}}
{{- define "claimkeeper.clientConfig" -}}
{{- $root := index . 0 }}
{{- $path := index . 1 }}
{{- $certificates := $root.Values.webhook.certificates }}
{{- /* caBundle is left to the operator, or to cert-manager. */}}
{{- if and $certificates.caBundle (eq $certificates.mode "files") }}
caBundle: {{ $certificates.caBundle | b64enc }}
{{- end }}
{{- with $root.Values.webhook.url }}
url: {{ trimSuffix "/" . }}{{ $path }}
{{- else }}
service:
  name: {{ include "claimkeeper.webhookService" $root }}
  namespace: {{ $root.Release.Namespace }}
  path: {{ $path }}
{{- end }}
{{- end }}

{{/* Whose objects are asked about: the root context, and the selector that was chosen. */}}
{{- define "claimkeeper.namespaceSelector" -}}
{{- $root := index . 0 }}
{{- $chosen := index . 1 }}
{{- if $chosen }}
{{- toYaml $chosen }}
{{- else if $root.Values.namespace }}
matchLabels:
  kubernetes.io/metadata.name: {{ $root.Values.namespace }}
{{- else }}
# An operator that cannot start must not be what keeps it from starting.
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ $root.Release.Namespace }}]}
{{- end }}
{{- end }}

{{/* The operator's own format is not cert-manager's, so that neither finds the other's. */}}
{{- define "claimkeeper.webhookSecret" -}}
{{ .Values.webhook.certificates.secret | default (printf "%s-webhook%s" .Release.Name (ternary "-tls" "" (eq .Values.webhook.certificates.mode "cert-manager"))) }}
{{- end }}

{{/* Cluster-scoped names carry the namespace, so that two releases of one name do not share rights. */}}
{{- define "claimkeeper.clusterName" -}}
{{ .Release.Namespace }}:{{ .Release.Name }}
{{- end }}

{{- define "claimkeeper.labels" -}}
app.kubernetes.io/name: claimkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* By these everything finds the pods: the root context, and the component, or none for all. They never change. */}}
{{- define "claimkeeper.selector" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 -}}
app.kubernetes.io/name: claimkeeper
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with $component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Whether replicas of their own answer API servers; empty if not. */}}
{{- define "claimkeeper.split" -}}
{{ if and .Values.split (include "claimkeeper.webhook" .) }}true{{ end }}
{{- end }}

{{/* The account of those. */}}
{{- define "claimkeeper.webhookAccount" -}}
{{ include "claimkeeper.serviceAccount" . }}-webhook
{{- end }}

{{/* The port of an address such as 0.0.0.0:8080 or [::]:8080. */}}
{{- define "claimkeeper.port" -}}
{{ splitList ":" . | last }}
{{- end }}

{{- define "claimkeeper.image" -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "claimkeeper.subject" -}}
- kind: ServiceAccount
  name: {{ include "claimkeeper.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* An admission policy and its binding: the root context, and the name of a file in policies/. */}}
{{- define "claimkeeper.policy" -}}
{{- $root := index . 0 }}
{{- $file := index . 1 }}
{{- $name := printf "%s.%s.%s" $file $root.Release.Name $root.Release.Namespace }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "claimkeeper.labels" $root | nindent 4 }}
spec:
  {{- $root.Files.Get (printf "policies/%s.yaml" $file) | trim | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "claimkeeper.labels" $root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
  {{- with $root.Values.namespace }}
  matchResources:
    namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: {{ . }}
  {{- end }}
{{ end }}

{{- define "claimkeeper.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "claimkeeper.lease" -}}
{{ .Values.leaderElection.name | default .Release.Name }}
{{- end }}

{{/* Whether API servers call the operator; empty if not. */}}
{{- define "claimkeeper.webhook" -}}
{{ if and (has "enforcement" .Values.features) .Values.webhook.enforcement.enabled }}true{{ end }}
{{- end }}

{{- define "claimkeeper.webhookService" -}}
{{ .Values.webhook.service | default (printf "%s-webhook" .Release.Name) }}
{{- end }}

{{- define "claimkeeper.webhookConfiguration" -}}
{{ .Values.webhook.configuration | default (printf "%s-enforcement" .Release.Name) }}
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

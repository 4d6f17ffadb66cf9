{{- define "claimkeeper.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "claimkeeper.lease" -}}
{{ .Values.leaderElection.name | default .Release.Name }}
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

{{/* The features that API servers ask, as JSON. */}}
{{- define "claimkeeper.answering" -}}
{{- $answering := list }}
{{- if include "claimkeeper.enforcementWebhook" . }}
{{- $answering = append $answering "enforcement" }}
{{- end }}
{{- if include "claimkeeper.placementWebhook" . }}
{{- $answering = append $answering "placement" }}
{{- end }}
{{- toJson $answering }}
{{- end }}

{{/* The operator's configuration: the root context, and whether it is that of replicas that only answer API servers. */}}
{{- define "claimkeeper.config" -}}
{{- $root := index . 0 }}
{{- $observes := index . 1 }}
{{- $values := $root.Values }}
{{- $features := ternary (include "claimkeeper.answering" $root | fromJsonArray) $values.features $observes }}
{{- $config := dict "features" $features "admin" $values.admin "log" $values.log }}
{{- with $values.namespace }}
{{- $_ := set $config "namespace" . }}
{{- end }}

{{- $election := deepCopy $values.leaderElection }}
{{- $_ := set $election "name" (include "claimkeeper.lease" $root) }}
{{- $_ := set $election "namespace" $root.Release.Namespace }}
{{- if $observes }}
{{- $_ := set $election "candidate" false }}
{{- end }}
{{- $_ := set $config "leaderElection" $election }}

{{- range $feature := $features }}
{{- $block := $feature | replace "shared-volumes" "sharedVolumes" }}
{{- $settings := omit (deepCopy (index $values $block)) "policies" "deletes" }}
{{- /* Unquoted, YAML takes off for false. */}}
{{- range $key := list "authorize" "reclaimCompleted" "nodeGone" }}
{{- if and (hasKey $settings $key) (eq (toString (index $settings $key)) "false") }}
{{- $_ := set $settings $key "off" }}
{{- end }}
{{- end }}
{{- if eq $feature "enforcement" }}
{{- $_ := set $settings "claimWebhook" (not (empty (include "claimkeeper.enforcementWebhook" $root))) }}
{{- if $observes }}
{{- /* Not their own account makes claims, but that of the others. */}}
{{- $account := printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "claimkeeper.serviceAccount" $root) }}
{{- $_ := set $settings "trustedCreators" (append $settings.trustedCreators $account | uniq) }}
{{- end }}
{{- else if eq $feature "placement" }}
{{- $_ := set $settings "podWebhook" (not (empty (include "claimkeeper.placementWebhook" $root))) }}
{{- else if eq $feature "shared-volumes" }}
{{- $storageos := omit $settings.storageos "secret" }}
{{- if not $storageos.ca }}
{{- $storageos = omit $storageos "ca" }}
{{- end }}
{{- $_ := set $settings "storageos" $storageos }}
{{- end }}
{{- $_ := set $config $block $settings }}
{{- end }}

{{- if include "claimkeeper.webhook" $root }}
{{- $_ := set $config "webhook" (include "claimkeeper.webhookConfig" $root | fromYaml) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Its block `webhook`. */}}
{{- define "claimkeeper.webhookConfig" -}}
{{- $webhook := pick .Values.webhook "listen" "requestTimeout" "maxInFlight" "maxConnections" "drainDelay" }}
{{- with .Values.webhook.clientCA }}
{{- $_ := set $webhook "clientCA" . }}
{{- end }}
{{- $certificates := dict "mode" "files" "directory" (include "claimkeeper.certificateDirectory" .) }}
{{- if eq .Values.webhook.certificates.mode "self-managed" }}
{{- $certificates = pick .Values.webhook.certificates "mode" "names" "leafLifetime" "caLifetime" "settle" "grace" }}
{{- $_ := set $certificates "secret" (include "claimkeeper.webhookSecret" .) }}
{{- $_ := set $certificates "service" (include "claimkeeper.webhookService" .) }}
{{- with .Values.webhook.url }}
{{- $_ := set $certificates "names" (append $certificates.names (urlParse .).hostname | uniq) }}
{{- end }}
{{- $configurations := list }}
{{- if include "claimkeeper.enforcementWebhook" . }}
{{- $configurations = append $configurations (include "claimkeeper.enforcementConfiguration" .) }}
{{- end }}
{{- if include "claimkeeper.placementWebhook" . }}
{{- $configurations = append $configurations (printf "mutating/%s" (include "claimkeeper.placementConfiguration" .)) }}
{{- end }}
{{- $_ := set $certificates "configurations" $configurations }}
{{- end }}
{{- $_ := set $webhook "certificates" $certificates }}
{{- toYaml $webhook }}
{{- end }}

{{- define "claimkeeper.certificateDirectory" -}}
/etc/claimkeeper/certificate
{{- end }}

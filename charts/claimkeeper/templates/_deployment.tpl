{{/* Replicas with their configuration and their budget: the root context, their component, their name, their account, how many. */}}
{{- define "claimkeeper.replicas" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $name := index . 2 }}
{{- $account := index . 3 }}
{{- $replicas := index . 4 }}
{{- $values := $root.Values }}
{{- $config := include "claimkeeper.config" (list $root (eq $component "webhook")) }}
{{- $selector := include "claimkeeper.selector" (list $root $component) }}
{{- $answers := include "claimkeeper.webhook" $root }}
{{- $mountsCertificate := and $answers (ne $values.webhook.certificates.mode "self-managed") }}
{{- $mountsStorageos := and (has "shared-volumes" $values.features) (ne $component "webhook") }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "claimkeeper.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
data:
  config.yaml: |
    {{- $config | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "claimkeeper.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
spec:
  replicas: {{ $replicas }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  {{- if not $values.leaderElection.enabled }}
  # Nobody else keeps two from acting at once.
  strategy: {type: Recreate}
  {{- else if eq $values.antiAffinity "required" }}
  # There may be no node left for one more.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  {{- end }}
  template:
    metadata:
      labels:
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "claimkeeper.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $component }}
      annotations:
        # The file is read when the operator starts.
        checksum/config: {{ sha256sum $config }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $account }}
      # It would be told of every Service in its namespace, and asks for none.
      enableServiceLinks: false
      {{- with $values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- with $values.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- with omit $values.affinity "podAntiAffinity" }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        podAntiAffinity:
          {{- if $values.affinity.podAntiAffinity }}
          {{- toYaml $values.affinity.podAntiAffinity | nindent 10 }}
          {{- else if eq $values.antiAffinity "required" }}
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  {{- $selector | nindent 18 }}
          {{- else }}
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- $selector | nindent 20 }}
          {{- end }}
      {{- if $values.topologySpread }}
      topologySpreadConstraints:
        - topologyKey: topology.kubernetes.io/zone
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- $selector | nindent 14 }}
          # Replicas that are on their way out do not count.
          matchLabelKeys: [pod-template-hash]
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: claimkeeper
          image: {{ include "claimkeeper.image" (merge (dict "tag" ($values.image.tag | default $root.Chart.AppVersion)) $values.image) }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: [run, --config=/etc/claimkeeper/config/config.yaml]
          {{- with $values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - {name: admin, containerPort: {{ include "claimkeeper.port" $values.admin.listen }}}
            {{- if $answers }}
            - {name: webhook, containerPort: {{ include "claimkeeper.port" $values.webhook.listen }}}
            {{- end }}
          livenessProbe:
            httpGet: {path: /healthz, port: admin}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: /readyz, port: admin}
            # A replica that ends takes calls for the webhook's drainDelay: until then everybody must know.
            periodSeconds: 2
            timeoutSeconds: 2
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with $values.securityContext }}
          securityContext:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - {name: config, mountPath: /etc/claimkeeper/config, readOnly: true}
            {{- if $mountsCertificate }}
            - {name: certificate, mountPath: {{ include "claimkeeper.certificateDirectory" $root }}, readOnly: true}
            {{- end }}
            {{- if $mountsStorageos }}
            - {name: storageos, mountPath: {{ $values.sharedVolumes.storageos.secretPath }}, readOnly: true}
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ $name }}}
        {{- if $mountsCertificate }}
        - name: certificate
          # 0440 in octal.
          secret: {secretName: {{ include "claimkeeper.webhookSecret" $root }}, defaultMode: 288}
        {{- end }}
        {{- if $mountsStorageos }}
        - name: storageos
          # 0440 in octal.
          secret: {secretName: {{ $values.sharedVolumes.storageos.secret }}, defaultMode: 288}
        {{- end }}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- if and $values.podDisruptionBudget.enabled (gt (int $replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "claimkeeper.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  # A replica that cannot become ready must not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
{{- end }}
{{- end }}

{{- define "vmpin.name" -}}
{{- if contains "vmpin" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-vmpin{{ end }}
{{- end }}

{{- define "vmpin.selector" -}}
app.kubernetes.io/name: vmpin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vmpin.labels" -}}
{{ include "vmpin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "vmpin.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "vmpin.image" -}}
{{ .Values.image.repository }}:{{ include "vmpin.tag" . }}
{{- end }}

{{- define "vmpin.reporterImage" -}}
{{ .Values.image.repository }}:{{ .Values.reporter.tag | default (printf "%s-kubernetes" (include "vmpin.tag" .)) }}
{{- end }}

{{- /* A value as YAML, without the keys whose value is null: Helm keeps a null that was given (--set KEY=null), and the
API server would read it as an empty text. */ -}}
{{- define "vmpin.given" -}}
{{- $copy := dict "value" (deepCopy .) }}
{{- include "vmpin.dropNulls" $copy }}
{{- with $copy.value }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "vmpin.dropNulls" -}}
{{- range $key, $value := . }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $ $key }}
{{- else if kindIs "map" $value }}{{ include "vmpin.dropNulls" $value }}
{{- else if kindIs "slice" $value }}{{ range $value }}{{ if kindIs "map" . }}{{ include "vmpin.dropNulls" . }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of all pods: where they run, and with which Secrets their images are pulled. */ -}}
{{- define "vmpin.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with include "vmpin.given" (get .Values "nodeSelector" | default dict) }}
nodeSelector:
  {{- . | nindent 2 }}
{{- end }}
{{- with include "vmpin.given" (get .Values "affinity" | default dict) }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Of the DaemonSets' pods. */ -}}
{{- define "vmpin.scheduling" -}}
{{- include "vmpin.placement" . }}
{{- with include "vmpin.given" (get .Values "tolerations" | default list) }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Of the Job's pod: as those of the DaemonSets, but it is never put on a node that is down, where it would not
start. Such a node has a taint with the effect NoExecute, which a toleration of everything covers, and which every pod
tolerates for five minutes unless it names the taint (Kubernetes' DefaultTolerationSeconds): so the former is for
NoSchedule alone, and the latter is named, with a value that it never has. */ -}}
{{- define "vmpin.jobScheduling" -}}
{{- include "vmpin.placement" . }}
tolerations:
  {{- range get .Values "tolerations" | default list }}
  {{- $effect := get . "effect" | default "NoSchedule" }}
  {{- if get . "key" }}
  - {{ include "vmpin.given" . | nindent 4 | trim }}
  {{- else if ne $effect "NoExecute" }}
  - operator: Exists
    effect: {{ $effect }}
  {{- end }}
  {{- end }}
  {{- range list "not-ready" "unreachable" }}
  - {key: node.kubernetes.io/{{ . }}, operator: Equal, value: never, effect: NoExecute}
  {{- end }}
{{- end }}

{{- /* The watcher's run directory, and in it the directory of the status socket. */ -}}
{{- define "vmpin.run" -}}
{{ get (get .Values.config "paths" | default dict) "run" | default "/run/vmpin" }}
{{- end }}

{{- /* The address of metrics and probes. $(HOST_IP) is the pod's own variable. */ -}}
{{- define "vmpin.address" -}}
{{- $port := int .Values.metrics.port }}
{{- if not .Values.watcher.hostNetwork }}{{ ternary "[::]" "0.0.0.0" .Values.metrics.ipv6 }}:{{ $port }}
{{- else if .Values.podMonitor.enabled }}{{ ternary "[$(HOST_IP)]" "$(HOST_IP)" .Values.metrics.ipv6 }}:{{ $port }}
{{- else }}127.0.0.1:{{ $port }}
{{- end }}
{{- end }}

{{- /* Whether the probes go to 127.0.0.1; else to the pod's address, the kubelet's default. */ -}}
{{- define "vmpin.loopback" -}}
{{- if and .Values.watcher.hostNetwork (not .Values.podMonitor.enabled) }}true{{ end }}
{{- end }}

{{- define "vmpin.probe" -}}
{ {{- if include "vmpin.loopback" .root }}host: 127.0.0.1, {{ end }}path: {{ .path }}, port: {{ int .root.Values.metrics.port -}} }
{{- end }}

{{- /* vmpin's configuration, with the keys that the chart sets. */ -}}
{{- define "vmpin.config" -}}
{{- $copy := dict "value" (deepCopy .Values.config) }}
{{- include "vmpin.dropNulls" $copy }}
{{- $config := $copy.value }}
{{- $watch := dict "reload" "change" }}
{{- if .Values.reporter.enabled }}
{{- $_ := set $watch "status_group" (.Values.reporter.uid | int64 | toString) }}
{{- end }}
{{- $_ := set $config "watch" (merge $watch (get $config "watch" | default dict)) }}
{{- $paths := get $config "paths" | default dict }}
{{- $kubelet := .Values.kubelet.directory }}
{{- with get $paths "kubelet" }}
{{- if ne . $kubelet }}
{{- fail (printf "config.paths.kubelet is %s, and kubelet.directory, which is mounted, is %s: set the latter alone" . $kubelet) }}
{{- end }}
{{- end }}
{{- if ne $kubelet "/var/lib/kubelet" }}
{{- $_ := set $config "paths" (merge (dict "kubelet" $kubelet) $paths) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* What the watcher reads at its start alone: a change of it takes a rollout. */ -}}
{{- define "vmpin.fixed" -}}
{{- $watch := get .Values.config "watch" | default dict }}
{{- $fixed := dict "paths" (get .Values.config "paths") "watch" (pick $watch "nri" "kubelet" "births") }}
{{- range $section := list "allocate" "irqs" "memory" "runc" "scheduling" }}
{{- with get $.Values.config $section }}
{{- $_ := set $fixed $section . }}
{{- end }}
{{- end }}
{{- $fixed | toJson }}
{{- end }}

{{- define "vmpin.configVolume" -}}
- name: config
  configMap:
    name: {{ include "vmpin.name" . }}
{{- end }}

{{- /* Keys of the reporter alone, which differ by node or take rights: variables override the file. */ -}}
{{- define "vmpin.reporterEnvironment" -}}
- name: VMPIN_KUBERNETES_NODE
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: VMPIN_KUBERNETES_READY_FILE
  value: /run/reporter/ready
{{- with .Values.reporter.startupTaint }}
- name: VMPIN_KUBERNETES_STARTUP_TAINT
  value: {{ . | quote }}
{{- end }}
{{- include "vmpin.options" . }}
{{- end }}

{{- /* What is written only where it is asked for, and then withdrawn, too. */ -}}
{{- define "vmpin.options" -}}
{{- if ne .Values.reporter.nrt "off" }}
- name: VMPIN_KUBERNETES_NRT
  value: {{ .Values.reporter.nrt }}
{{- end }}
{{- end }}

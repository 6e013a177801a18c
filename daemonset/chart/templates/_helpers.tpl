{{- /* Labels of every object. Selectors and pods do not have those that change with a release. */ -}}
{{- define "linkwise.labels" -}}
app.kubernetes.io/part-of: linkwise
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Name, namespace and labels of an object; further labels may follow. Takes a list: the root, the name. */ -}}
{{- define "linkwise.metadata" -}}
name: {{ last . }}
namespace: {{ (first .).Release.Namespace | quote }}
labels:
  {{- include "linkwise.labels" (first .) | nindent 2 }}
{{- end }}

{{- /* The same of an object in no namespace. */ -}}
{{- define "linkwise.clusterMetadata" -}}
name: {{ last . }}
labels:
  {{- include "linkwise.labels" (first .) | nindent 2 }}
{{- end }}

{{- /* The binding of an account to a role. Takes a dict: root, kind, name; role and account, where they have another
       name; namespace, where it is not the release's; annotations. */ -}}
{{- define "linkwise.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  {{- if eq .kind "RoleBinding" }}
  namespace: {{ .namespace | default .root.Release.Namespace | quote }}
  {{- end }}
  labels:
    {{- include "linkwise.labels" .root | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ trimSuffix "Binding" .kind }}
  name: {{ .role | default .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | default .name }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end }}

{{- define "linkwise.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "linkwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Labels of an object that people may label too. Takes a list: the root, the map of their labels. */ -}}
{{- define "linkwise.labelsWith" -}}
{{- toYaml (merge (include "linkwise.labels" (first .) | fromYaml) (last . | default dict)) }}
{{- end }}

{{- /* Labels and annotations of a pod. Takes a list: the program, the values of the program, and the annotations
       that the chart adds. A label may not change what selectors read; an annotation may differ from the chart's. */ -}}
{{- define "linkwise.podMetadata" -}}
{{- $own := dict "app.kubernetes.io/name" (printf "linkwise-%s" (first .)) "app.kubernetes.io/part-of" "linkwise" }}
{{- $values := index . 1 }}
labels:
  {{- toYaml (merge $own ($values.podLabels | default dict)) | nindent 2 }}
annotations:
  {{- toYaml (merge (deepCopy ($values.podAnnotations | default dict)) (last .)) | nindent 2 }}
{{- end }}

{{- /* An image reference. Takes a dict: image (registry, repository, tag, digest), tag (the default). */ -}}
{{- define "linkwise.reference" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .tag }}{{ end }}
{{- end }}

{{- define "linkwise.image" -}}
{{- include "linkwise.reference" (dict "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{- /* Vendors append to the version (v1.34.1-gke.1829001, v1.33.5+k3s1); the registry has v1.34.1. */ -}}
{{- define "linkwise.schedulerImage" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version }}
{{- include "linkwise.reference" (dict "image" .Values.scheduler.image "tag" $version) }}
{{- end }}

{{- /* Flags of a program, one line each, from a map: a list repeats a flag, true and false are --flag
       and --no-flag, null leaves a flag out. A number of a values file is a float64, which prints 1000000 as
       1e+06. */ -}}
{{- define "linkwise.flags" -}}
{{- range $flag, $value := . }}
{{- if kindIs "bool" $value }}
- {{ printf "--%s%s" (ternary "" "no-" $value) $flag }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%v" $flag . | quote }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
{{- $whole := and (kindIs "float64" $value) (eq (floor $value) $value) }}
- {{ printf "--%s=%v" $flag (ternary (int64 $value) $value $whole) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What people may set of any pod. Takes the values of one program. */ -}}
{{- define "linkwise.placing" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The resources that are GPUs, as JSON: resourceName is one, or a list. */ -}}
{{- define "linkwise.resources" -}}
{{- ternary .Values.resourceName (list .Values.resourceName) (kindIs "slice" .Values.resourceName) | toJson }}
{{- end }}

{{- /* The plugin's DaemonSets, one for each resource, as JSON. */ -}}
{{- define "linkwise.daemonSets" -}}
{{- $names := list }}
{{- range $place, $resource := include "linkwise.resources" . | fromJsonArray }}
{{- $names = append $names (ternary (printf "linkwise-plugin-%s" (first (splitList "." $resource))) "linkwise-plugin" (gt $place 0)) }}
{{- end }}
{{- $names | toJson }}
{{- end }}

{{- define "linkwise.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "linkwise.egress" -}}
egress:
  # By port, because each cluster's API server has its own address: 443 for its Service and most clouds,
  # 6443 for kubeadm, kind and k3s, 8443 for minikube. No DNS: the programs use an address.
  - ports:
      {{- range .Values.networkPolicy.apiServerPorts }}
      - port: {{ . }}
      {{- end }}
{{- end }}

{{- /* Without the extender there is nothing to call, so neither of the two is installed. */ -}}
{{- define "linkwise.hasScheduler" -}}
{{- if and .Values.extender.enabled (eq .Values.scheduler.mode "second") }}true{{ end }}
{{- end }}

{{- define "linkwise.hasWebhook" -}}
{{- if and .Values.extender.enabled .Values.webhook.enabled }}true{{ end }}
{{- end }}

{{- /* The namespaces whose objects reach the webhook. Kubernetes' own, and those that opt out, never do. */ -}}
{{- define "linkwise.namespaceSelector" -}}
{{- $given := .Values.webhook.namespaceSelector | default dict }}
{{- with $given.matchLabels }}
matchLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [kube-system, kube-public, kube-node-lease]
  - key: linkwise.dev/webhook
    operator: NotIn
    values: [ignore]
  {{- if $given }}
  {{- with $given.matchExpressions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- else }}
  {{- with .Values.extender.flags.namespace }}
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{ toJson . }}
  {{- end }}
  {{- end }}
{{- end }}

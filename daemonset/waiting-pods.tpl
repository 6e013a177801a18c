{{- /* Prints a command for each pod that waits for Linkwise, once Linkwise is gone (docs/operating/upgrade-and-uninstall.md):
  kubectl get pods -A --field-selector spec.nodeName= -o go-template-file=daemonset/waiting-pods.tpl > waiting.sh
A pod of the second scheduler and one that waits for a claim of Linkwise can only be created again, so these are deleted.
From a pod of another scheduler it is enough to remove the gate. */ -}}
{{- range .items }}
{{- $name := printf "-n %s %s" .metadata.namespace .metadata.name }}
{{- $claims := false }}{{ with .metadata.annotations }}{{ with index . "linkwise.dev/claims" }}{{ $claims = true }}{{ end }}{{ end }}
{{- $gated := false }}{{ range .spec.schedulingGates }}{{ if eq .name "linkwise.dev/plan" }}{{ $gated = true }}{{ end }}{{ end }}
{{- if or $claims (eq .spec.schedulerName "linkwise-scheduler") -}}
kubectl delete pod {{ $name }} --wait=false
{{ else if $gated -}}
kubectl patch pod {{ $name }} -p '{"spec":{"schedulingGates":[{"$patch":"delete","name":"linkwise.dev/plan"}]}}'
{{ end }}
{{- end }}

{{- define "odradek.notes" -}}
{{- $protocol := include "odradek.internalProtocol" . -}}
Odradek {{ .Chart.AppVersion }}: {{ int .Values.replicas }} node(s), cluster {{ include "odradek.clusterId" . }}

Clients in this Kubernetes cluster begin at
  {{ include "odradek.bootstrapHost" . }}:{{ int .Values.listeners.internal.port }}    ({{ $protocol }})
{{- if .Values.externalAccess.enabled }}
Clients outside reach broker 0 at
  {{ default "the address of the machine that it runs on" (include "odradek.externalHost" (dict "root" . "ordinal" 0)) }}:{{ include "odradek.externalPort" (dict "root" . "ordinal" 0) }}    ({{ include "odradek.externalProtocol" . }})
{{- end }}
{{- if .Values.auth.enabled }}

The password of {{ .Values.auth.admin.username }}:
  kubectl get secret -n {{ .Release.Namespace }} {{ include "odradek.adminSecret" . }} -o jsonpath='{.data.password}' | base64 -d
{{- else if not .Values.networkPolicy.enabled }}

Every pod of the Kubernetes cluster may read and change everything: see auth.enabled, tls.enabled, networkPolicy.enabled.
{{- end }}
{{- if and .Values.tls.enabled (not .Values.tls.certManager.enabled) }}

The certificate in {{ include "odradek.tlsSecret" . }} needs these names:
{{ include "odradek.certificateNames" . | indent 2 }}
{{- end }}
{{- if and .Values.rack.enabled (eq .Values.rack.source "podLabel") (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) }}

Kubernetes {{ .Capabilities.KubeVersion.Version }} does not copy labels of machines to pods: unless something else gives the pods the label
{{ .Values.rack.label }}, nodes have no rack. Set rack.source=nodeLabel.
{{- end }}
{{- $existing := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "odradek.fullname" .) }}
{{- $before := int (dig "spec" "replicas" 0 ($existing | default dict)) }}
{{- if and $before (lt $before (int .Values.replicas)) (eq .Values.scaleUp.hook "never") }}

New nodes get replicas of new topics only. To move others to them, now and with later upgrades: scaleUp.hook=auto.
{{- end }}

Try it:
  helm test -n {{ .Release.Namespace }} {{ .Release.Name }}
{{- if eq $protocol "PLAINTEXT" }}
  kubectl exec -n {{ .Release.Namespace }} {{ include "odradek.fullname" . }}-0 -c odradek -- odradek cluster status --bootstrap localhost:{{ int .Values.listeners.internal.port }}
{{- end }}
{{- end -}}

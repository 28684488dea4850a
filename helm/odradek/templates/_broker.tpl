{{/* What the two containers of a broker's pod have in common. */}}

{{- define "odradek.brokerEnvironment" -}}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef: {apiVersion: v1, fieldPath: metadata.name}
  {{- if and .Values.rack.enabled (eq .Values.rack.source "podLabel") }}
  - name: ODRADEK_BROKER_RACK
    valueFrom:
      fieldRef: {apiVersion: v1, fieldPath: "metadata.labels['{{ .Values.rack.label }}']"}
  {{- end }}
  {{- if include "odradek.advertisesMachine" . }}
  - name: HOST_IP
    valueFrom:
      fieldRef: {apiVersion: v1, fieldPath: status.hostIP}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "odradek.brokerVolumeMounts" -}}
- {name: data, mountPath: /var/lib/odradek}
{{- range .Values.storage.extraLogDirs }}
- {name: {{ .name }}, mountPath: /var/lib/odradek-{{ .name }}}
{{- end }}
- {name: config, mountPath: /etc/odradek/config, readOnly: true}
- {name: cluster, mountPath: /etc/odradek/cluster, readOnly: true}
- {name: run, mountPath: /run}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/odradek/tls, readOnly: true}
{{- if .Values.tls.clientAuthoritySecret }}
- {name: client-authority, mountPath: /etc/odradek/client-authority, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether an init container asks the API server for the labels of the machine: "true" or empty. */}}
{{- define "odradek.asksForMachine" -}}
{{- if and .Values.rack.enabled (eq .Values.rack.source "nodeLabel") }}true{{ end -}}
{{- end -}}

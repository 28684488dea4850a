{{/* How the chart's own commands (tests, jobs) connect: arguments that are no secrets, and a file with the login. */}}

{{- define "odradek.clientArguments" -}}
{{- $protocol := include "odradek.internalProtocol" . -}}
- --bootstrap={{ include "odradek.bootstrapHost" . }}:{{ int .Values.listeners.internal.port }}
{{- if ne $protocol "PLAINTEXT" }}
- --property=security.protocol={{ $protocol }}
{{- end }}
{{- if hasSuffix "SSL" $protocol }}
- --property=ssl.ca.location=/etc/odradek/tls/{{ .Values.tls.caKey }}
{{- if eq .Values.tls.clientAuth "required" }}
- --property=ssl.certificate.location=/etc/odradek/tls/{{ .Values.tls.key }}
- --property=ssl.key.location=/etc/odradek/tls/{{ .Values.tls.key }}
{{- end }}
{{- end }}
{{- if hasPrefix "SASL" $protocol }}
- --property=sasl.mechanism={{ .Values.auth.mechanism }}
- --client-config=/etc/odradek/client/client.properties
{{- end }}
{{- end -}}

{{- define "odradek.clientVolumeMounts" -}}
{{- $protocol := include "odradek.internalProtocol" . -}}
- {name: tmp, mountPath: /tmp}
{{- if hasSuffix "SSL" $protocol }}
- {name: tls, mountPath: /etc/odradek/tls, readOnly: true}
{{- end }}
{{- if hasPrefix "SASL" $protocol }}
- {name: client, mountPath: /etc/odradek/client, readOnly: true}
{{- end }}
{{- end -}}

{{- define "odradek.clientVolumes" -}}
{{- $protocol := include "odradek.internalProtocol" . -}}
- name: tmp
  emptyDir: {}
{{- if hasSuffix "SSL" $protocol }}
- name: tls
  secret:
    secretName: {{ include "odradek.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- if hasPrefix "SASL" $protocol }}
- name: client
  secret:
    secretName: {{ default (include "odradek.adminSecret" .) .loginSecret }}
    defaultMode: 0440
    items:
      - {key: client.properties, path: client.properties}
{{- end }}
{{- end -}}

{{/* A pod of the chart's own commands, without its containers; its volumes come last. They log in as the admin, or with the
Secret `loginSecret`. */}}
{{- define "odradek.clientPod" -}}
restartPolicy: Never
serviceAccountName: {{ include "odradek.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  {{- include "odradek.clientVolumes" . | nindent 2 }}
{{- end -}}

{{/* A container of such a pod: (dict "root" $ "name" "doctor" "command" (list "doctor")). */}}
{{- define "odradek.clientContainer" -}}
{{- $root := .root -}}
- name: {{ .name }}
  image: {{ include "odradek.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [odradek]
  args:
    {{- range .command }}
    - {{ . | toString | quote }}
    {{- end }}
    {{- include "odradek.clientArguments" $root | nindent 4 }}
  env:
    # Rich and librdkafka look for a home folder.
    - {name: HOME, value: /tmp}
  securityContext:
    {{- toYaml $root.Values.containerSecurityContext | nindent 4 }}
  resources:
    {{- toYaml $root.Values.commands.resources | nindent 4 }}
  volumeMounts:
    {{- include "odradek.clientVolumeMounts" $root | nindent 4 }}
{{- end -}}

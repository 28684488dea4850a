{{/* Names and labels. A StatefulSet's name has at most 52 characters, as its pods get a label with a hash behind it;
40 leave room for the suffixes of the other objects. */}}

{{- define "odradek.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "odradek.headless" -}}{{ include "odradek.fullname" . }}-headless{{- end -}}
{{- define "odradek.bootstrap" -}}{{ include "odradek.fullname" . }}-bootstrap{{- end -}}

{{/* What never changes: the selectors of a StatefulSet and of its claims are immutable. */}}
{{- define "odradek.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end -}}

{{/* Labels of an object: (dict "root" $ "component" "broker"). */}}
{{- define "odradek.labels" -}}
{{- $root := .root -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "odradek.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "odradek.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "odradek.image" -}}{{ include "odradek.imageOf" (dict "root" . "image" .Values.image) }}{{- end -}}

{{/* The name of an image: (dict "root" $ "image" .Values.image). */}}
{{- define "odradek.imageOf" -}}
{{- $image := .image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The DNS domain of the pods, and the name of one: (dict "root" $ "ordinal" 0). */}}
{{- define "odradek.podDomain" -}}
{{ include "odradek.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
{{- define "odradek.podHost" -}}
{{ include "odradek.fullname" .root }}-{{ .ordinal }}.{{ include "odradek.podDomain" .root }}
{{- end -}}
{{- define "odradek.bootstrapHost" -}}
{{ include "odradek.bootstrap" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* Names of the Secrets, ours or somebody else's. */}}
{{- define "odradek.clusterSecret" -}}
{{- default (printf "%s-cluster" (include "odradek.fullname" .)) .Values.cluster.secret.existingSecret -}}
{{- end -}}
{{- define "odradek.adminSecret" -}}
{{- default (printf "%s-admin" (include "odradek.fullname" .)) .Values.auth.admin.existingSecret -}}
{{- end -}}
{{- define "odradek.tlsSecret" -}}
{{- default (printf "%s-tls" (include "odradek.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{/* The names and addresses that the brokers' certificate needs, as a list. */}}
{{- define "odradek.certificateNames" -}}
{{- $access := .Values.externalAccess -}}
{{- $names := list (printf "*.%s" (include "odradek.podDomain" .)) (include "odradek.bootstrapHost" .) (printf "%s.%s.svc" (include "odradek.bootstrap" .) .Release.Namespace) (printf "%s.%s" (include "odradek.bootstrap" .) .Release.Namespace) (include "odradek.bootstrap" .) "localhost" -}}
{{- if $access.enabled -}}
{{- range $ordinal := until (int .Values.replicas) -}}
{{- $host := include "odradek.externalHost" (dict "root" $ "ordinal" $ordinal) -}}
{{- if $host }}{{ $names = append $names $host }}{{ end -}}
{{- end -}}
{{- if and (eq $access.type "Gateway") $access.gateway.bootstrapHost -}}
{{- $names = append $names $access.gateway.bootstrapHost -}}
{{- end -}}
{{- if and (eq $access.type "LoadBalancer") $access.loadBalancer.bootstrapHost -}}
{{- $names = append $names $access.loadBalancer.bootstrapHost -}}
{{- end -}}
{{- end -}}
{{- concat $names .Values.tls.certManager.extraDnsNames .Values.tls.certManager.extraIpAddresses | uniq | toYaml -}}
{{- end -}}

{{/* Whether a host is an address: "true" or empty. */}}
{{- define "odradek.isAddress" -}}
{{- if or (contains ":" .) (regexMatch "^[0-9.]+$" .) }}true{{ end -}}
{{- end -}}

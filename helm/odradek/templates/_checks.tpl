{{/* What values.schema.json cannot say: values that do not fit each other. Each message names the value. */}}
{{- define "odradek.checks" -}}
{{- $values := .Values -}}
{{- if lt (int $values.replicas) (int $values.cluster.bootstrapVoters) -}}
{{- fail (printf "replicas=%d: the cluster.bootstrapVoters (%d) have to stay. Lower bootstrapVoters only for a new cluster" (int $values.replicas) (int $values.cluster.bootstrapVoters)) -}}
{{- end -}}
{{- if gt (int (include "odradek.replicationFactor" .)) (int $values.replicas) -}}
{{- fail (printf "replicationFactor=%s: there are only %d replicas" (include "odradek.replicationFactor" .) (int $values.replicas)) -}}
{{- end -}}
{{- if gt (int (include "odradek.minInSyncReplicas" .)) (int (include "odradek.replicationFactor" .)) -}}
{{- fail "minInSyncReplicas: it is above the replication factor" -}}
{{- end -}}
{{- $protocols := list (include "odradek.internalProtocol" .) -}}
{{- if $values.externalAccess.enabled }}{{ $protocols = append $protocols (include "odradek.externalProtocol" .) }}{{ end -}}
{{- range $protocol := $protocols -}}
{{- if and (hasSuffix "SSL" $protocol) (not $values.tls.enabled) -}}
{{- fail (printf "a listener with securityProtocol %s needs tls.enabled" $protocol) -}}
{{- end -}}
{{- if and (hasPrefix "SASL" $protocol) (not $values.auth.enabled) -}}
{{- fail (printf "a listener with securityProtocol %s needs auth.enabled" $protocol) -}}
{{- end -}}
{{- end -}}
{{- if and $values.tls.enabled (not $values.tls.existingSecret) (not $values.tls.certManager.enabled) -}}
{{- fail "tls.enabled: name a Secret in tls.existingSecret, or have cert-manager make one (tls.certManager.enabled)" -}}
{{- end -}}
{{- if and $values.tls.certManager.enabled (not $values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name: name the issuer" -}}
{{- end -}}
{{- if and $values.tls.certManager.enabled (not $values.tls.enabled) -}}
{{- fail "tls.certManager.enabled needs tls.enabled" -}}
{{- end -}}
{{- $access := $values.externalAccess -}}
{{- if $access.enabled -}}
{{- if and (not $access.host) (ne $access.type "NodePort") -}}
{{- fail "externalAccess.host: name the host that clients use, as broker-{ordinal}.kafka.example.com" -}}
{{- end -}}
{{- if and (eq $access.type "NodePort") (eq $access.nodePort.externalTrafficPolicy "Local") $access.host (gt (int $values.replicas) 1) (not (contains "{ordinal}" $access.host)) -}}
{{- fail "externalAccess.nodePort.externalTrafficPolicy=Local: only a pod's own machine forwards to it. Leave externalAccess.host empty, or name a host for each broker with {ordinal}" -}}
{{- end -}}
{{- if and (ne $access.type "NodePort") (gt (int $values.replicas) 1) (not (contains "{ordinal}" $access.host)) -}}
{{- fail "externalAccess.host: with several brokers it needs {ordinal}, as in broker-{ordinal}.kafka.example.com" -}}
{{- end -}}
{{- if eq $access.type "Gateway" -}}
{{- if not (hasSuffix "SSL" (include "odradek.externalProtocol" .)) -}}
{{- fail "externalAccess.type=Gateway: brokers are told apart by SNI, so the listener needs TLS (tls.enabled)" -}}
{{- end -}}
{{- if not $access.gateway.parentRefs -}}
{{- fail "externalAccess.gateway.parentRefs: name the Gateway" -}}
{{- end -}}
{{- end -}}
{{- if eq $access.type "NodePort" -}}
{{- $last := add (int $access.nodePort.first) (int $values.replicas) -1 -}}
{{- if and (ge (int $access.nodePort.bootstrap) (int $access.nodePort.first)) (le (int $access.nodePort.bootstrap) $last) -}}
{{- fail (printf "externalAccess.nodePort.bootstrap=%d is the port of a broker: they have %d to %d" (int $access.nodePort.bootstrap) (int $access.nodePort.first) $last) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.pipeline.enabled (not $values.pipeline.args) -}}
{{- fail "pipeline.args: name the command, as [offload, --once, --name=events, --topics=events, --table=events]" -}}
{{- end -}}
{{- $ports := list (int $values.listeners.internal.port) (int $values.listeners.http.port) -}}
{{- if $access.enabled }}{{ $ports = append $ports (int $access.port) }}{{ end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "listeners: two of them have the same port" -}}
{{- end -}}
{{- range $port := $ports -}}
{{- if and (ge $port (int $values.listeners.peer.port)) (le $port (add (int $values.listeners.peer.port) 64)) -}}
{{- fail (printf "listeners.peer.port=%d: workers have the ports that follow, up to 64; %d is one of them" (int $values.listeners.peer.port) $port) -}}
{{- end -}}
{{- end -}}
{{- if and $values.rack.enabled (eq $values.rack.source "ordinals") (not $values.rack.ordinals) -}}
{{- fail "rack.ordinals: name the racks" -}}
{{- end -}}
{{- $existing := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "odradek.fullname" .) -}}
{{- if $existing -}}
{{- $known := dig "metadata" "annotations" "odradek/bootstrap-voters" "" $existing -}}
{{- if and $known (ne $known (toString (int $values.cluster.bootstrapVoters))) -}}
{{- fail (printf "cluster.bootstrapVoters: the cluster began with %s, which cannot change; odradek node add gives further nodes a vote" $known) -}}
{{- end -}}
{{- /* An API server refuses this, but does not say what to do. */ -}}
{{- $claims := dict "data" $values.storage.size -}}
{{- range $values.storage.extraLogDirs }}{{ $_ := set $claims .name .size }}{{ end -}}
{{- $recreate := printf "run kubectl delete statefulset -n %s %s --cascade=orphan, which stops no pod, and upgrade again" .Release.Namespace (include "odradek.fullname" .) -}}
{{- $made := dict -}}
{{- range $claim := dig "spec" "volumeClaimTemplates" list $existing -}}
{{- $name := $claim.metadata.name -}}
{{- $size := $claim.spec.resources.requests.storage -}}
{{- $_ := set $made $name $size -}}
{{- if not (hasKey $claims $name) -}}
{{- fail (printf "storage.extraLogDirs: the volume claims of a StatefulSet cannot change, and it has %s. Move its replicas away (odradek logdir move), %s" $name $recreate) -}}
{{- end -}}
{{- $before := include "odradek.mebibytes" $size -}}
{{- $after := include "odradek.mebibytes" (get $claims $name) -}}
{{- if and $before $after (ne $before $after) -}}
{{- fail (printf "storage: the volume claims %s of the StatefulSet have %s, which cannot become %s there. Enlarge the claims themselves (kubectl patch pvc), %s" $name $size (get $claims $name) $recreate) -}}
{{- end -}}
{{- end -}}
{{- range $name := keys $claims | sortAlpha -}}
{{- if not (hasKey $made $name) -}}
{{- fail (printf "storage.extraLogDirs: the volume claims of a StatefulSet cannot change, and it has no %s: %s" $name $recreate) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A size in MiB; empty if it has another unit, in which an API server may write the same size differently. */}}
{{- define "odradek.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $unit := trimPrefix $number . -}}
{{- $factors := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- if and $number (hasKey $factors $unit) }}{{ mul (int64 $number) (get $factors $unit) }}{{ end -}}
{{- end -}}

{{/* The configuration files of the nodes. `odradek.sharedSettings` is the same on all of them; a node's own file has
its id and addresses, too. */}}

{{- define "odradek.defaultProtocol" -}}
{{- $isEncrypted := .Values.tls.enabled -}}
{{- if .Values.auth.enabled -}}{{ ternary "SASL_SSL" "SASL_PLAINTEXT" $isEncrypted }}
{{- else -}}{{ ternary "SSL" "PLAINTEXT" $isEncrypted }}{{- end -}}
{{- end -}}
{{- define "odradek.internalProtocol" -}}
{{- default (include "odradek.defaultProtocol" .) .Values.listeners.internal.securityProtocol -}}
{{- end -}}
{{- define "odradek.externalProtocol" -}}
{{- default (include "odradek.defaultProtocol" .) .Values.externalAccess.securityProtocol -}}
{{- end -}}

{{- define "odradek.clusterId" -}}
{{- default (printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 22) .Values.cluster.id -}}
{{- end -}}

{{- define "odradek.replicationFactor" -}}
{{- default (min 3 (int .Values.cluster.bootstrapVoters)) .Values.replicationFactor -}}
{{- end -}}
{{- define "odradek.minInSyncReplicas" -}}
{{- default (ternary 2 1 (ge (int (include "odradek.replicationFactor" .)) 3)) .Values.minInSyncReplicas -}}
{{- end -}}

{{/* The log directories, separated by commas. The first one is the data folder. */}}
{{- define "odradek.logDirs" -}}
/var/lib/odradek/data
{{- range .Values.storage.extraLogDirs }},/var/lib/odradek-{{ .name }}/data{{ end -}}
{{- end -}}

{{/* A value as a broker reads it: large numbers without exponent, lists with commas. */}}
{{- define "odradek.settingValue" -}}
{{- if kindIs "string" . -}}{{ . }}
{{- else if kindIs "slice" . -}}{{ join "," . }}
{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{- define "odradek.listeners" -}}
{{- $address := .Values.listeners.address -}}
INTERNAL://{{ $address }}:{{ int .Values.listeners.internal.port }}
{{- if .Values.externalAccess.enabled }},EXTERNAL://{{ $address }}:{{ int .Values.externalAccess.port }}{{ end -}}
{{- end -}}

{{/* Keys that the chart sets from its own values; `config` must not have them. */}}
{{- define "odradek.reservedKeys" -}}
node.id broker.id cluster.id data log.dir log.dirs data.dir run peers join peer.listen peer.advertised listeners advertised.listeners listener.security.protocol.map http.listen cluster.secret cluster.secret.file broker.rack workers default.replication.factor min.insync.replicas config.providers config.providers.env.class config.providers.file.class config.providers.directory.class
{{- end -}}

{{- define "odradek.sharedSettings" -}}
{{- $values := .Values -}}
{{- $external := $values.externalAccess.enabled -}}
{{- $address := $values.listeners.address -}}
{{- $providers := "org.apache.kafka.common.config.provider" -}}
{{- $factor := include "odradek.replicationFactor" . -}}
{{- $protocols := list (include "odradek.internalProtocol" .) -}}
{{- if $external }}{{ $protocols = append $protocols (include "odradek.externalProtocol" .) }}{{ end -}}
{{- $settings := dict
      "cluster.id" (include "odradek.clusterId" .)
      "log.dirs" (include "odradek.logDirs" .)
      "run" "/run/odradek"
      "config.providers" "env,file,directory"
      "config.providers.env.class" (printf "%s.EnvVarConfigProvider" $providers)
      "config.providers.file.class" (printf "%s.FileConfigProvider" $providers)
      "config.providers.directory.class" (printf "%s.DirectoryConfigProvider" $providers)
      "cluster.secret.file" "/etc/odradek/cluster/secret"
      "peer.listen" (printf "%s:%d" $address (int $values.listeners.peer.port))
      "listeners" (include "odradek.listeners" .)
      "http.listen" (printf "%s:%d" $address (int $values.listeners.http.port))
      "log.format" "json"
      "default.replication.factor" $factor
      "min.insync.replicas" (include "odradek.minInSyncReplicas" .)
-}}
{{- $map := list (printf "INTERNAL:%s" (include "odradek.internalProtocol" .)) -}}
{{- if $external -}}
{{- $map = append $map (printf "EXTERNAL:%s" (include "odradek.externalProtocol" .)) -}}
{{- end -}}
{{- $_ := set $settings "listener.security.protocol.map" (join "," $map) -}}
{{- /* Internal topics have three replicas, or fewer until there are three nodes. */ -}}
{{- if lt (int $values.cluster.bootstrapVoters) 3 }}{{ $_ := set $settings "internal.topics.replication.adaptive" "true" }}{{ end -}}
{{- if $values.workers }}{{ $_ := set $settings "workers" $values.workers }}{{ end -}}
{{- if $values.rack.enabled -}}
{{- $_ := set $settings "replica.selector.class" "org.apache.kafka.common.replica.RackAwareReplicaSelector" -}}
{{- if include "odradek.asksForMachine" . }}{{ $_ := set $settings "broker.rack" "${file:/run/rack.properties:broker.rack}" }}{{ end -}}
{{- end -}}
{{- if $values.tls.enabled -}}
{{- $_ := set $settings "ssl.keystore.type" "PEM" -}}
{{- $_ := set $settings "ssl.keystore.location" (printf "/etc/odradek/tls/%s" $values.tls.key) -}}
{{- $_ := set $settings "ssl.client.auth" $values.tls.clientAuth -}}
{{- if ne $values.tls.clientAuth "none" -}}
{{- $_ := set $settings "ssl.truststore.type" "PEM" -}}
{{- $_ := set $settings "ssl.truststore.location" (ternary "/etc/odradek/client-authority/ca.crt" (printf "/etc/odradek/tls/%s" $values.tls.caKey) (not (empty $values.tls.clientAuthoritySecret))) -}}
{{- end -}}
{{- end -}}
{{- if $values.auth.enabled -}}
{{- $_ := set $settings "sasl.enabled.mechanisms" $values.auth.mechanism -}}
{{- $_ := set $settings "connections.max.reauth.ms" "3600000" -}}
{{- if $values.auth.acl -}}
{{- $_ := set $settings "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer" -}}
{{- $_ := set $settings "allow.everyone.if.no.acl.found" "false" -}}
{{- $_ := set $settings "super.users" (prepend $values.auth.superUsers (printf "User:%s" $values.auth.admin.username) | join ";") -}}
{{- $_ := set $settings "auto.create.topics.enable" "false" -}}
{{- end -}}
{{- end -}}
{{- $reserved := splitList " " (include "odradek.reservedKeys" .) -}}
{{- range $key, $value := $values.config -}}
{{- if has $key $reserved -}}
{{- fail (printf "config: %s is set by the chart from other values; remove it" $key) -}}
{{- end -}}
{{- $_ := set $settings $key (include "odradek.settingValue" $value) -}}
{{- end -}}
{{- range $key := keys $settings | sortAlpha }}
{{ $key }}={{ get $settings $key }}
{{- end -}}
{{- end -}}

{{/* host:port of the peers of some ordinals: (dict "root" $ "ids" true). */}}
{{- define "odradek.voterAddresses" -}}
{{- $root := .root -}}{{- $hasIds := .ids -}}
{{- $addresses := list -}}
{{- range $ordinal := until (int $root.Values.cluster.bootstrapVoters) -}}
{{- $host := include "odradek.podHost" (dict "root" $root "ordinal" $ordinal) -}}
{{- $address := printf "%s:%d" $host (int $root.Values.listeners.peer.port) -}}
{{- $addresses = append $addresses (ternary (printf "%d@%s" $ordinal $address) $address $hasIds) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{/* Host and port that clients outside use for a broker: (dict "root" $ "ordinal" 0). The host is empty if it is the
address of the pod's machine. */}}
{{- define "odradek.externalHost" -}}
{{- .root.Values.externalAccess.host | replace "{ordinal}" (toString .ordinal) -}}
{{- end -}}
{{- define "odradek.advertisesMachine" -}}
{{- with .Values.externalAccess }}{{ if and .enabled (eq .type "NodePort") (not .host) }}true{{ end }}{{ end -}}
{{- end -}}
{{- define "odradek.externalPort" -}}
{{- $access := .root.Values.externalAccess -}}
{{- if eq $access.type "NodePort" -}}{{ add (int $access.nodePort.first) (int .ordinal) }}
{{- else if eq $access.type "LoadBalancer" -}}{{ int $access.loadBalancer.port }}
{{- else -}}{{ int $access.gateway.port }}{{- end -}}
{{- end -}}

{{/* What differs from node to node: (dict "root" $ "ordinal" 0). */}}
{{- define "odradek.ownSettings" -}}
{{- $root := .root -}}{{- $ordinal := .ordinal -}}{{- $values := $root.Values -}}
{{- $host := include "odradek.podHost" . -}}
{{- $advertised := list (printf "INTERNAL://%s:%d" $host (int $values.listeners.internal.port)) -}}
{{- if $values.externalAccess.enabled -}}
{{- $advertised = append $advertised (printf "EXTERNAL://%s:%s" (default "[${env:HOST_IP}]" (include "odradek.externalHost" .)) (include "odradek.externalPort" .)) -}}
{{- end -}}
node.id={{ $ordinal }}
advertised.listeners={{ join "," $advertised }}
peer.advertised={{ $host }}:{{ int $values.listeners.peer.port }}
{{- if lt $ordinal (int $values.cluster.bootstrapVoters) }}
peers={{ include "odradek.voterAddresses" (dict "root" $root "ids" true) }}
{{- else }}
join={{ include "odradek.voterAddresses" (dict "root" $root "ids" false) }}
{{- end }}
{{- if and $values.rack.enabled (eq $values.rack.source "ordinals") }}
broker.rack={{ index $values.rack.ordinals (mod $ordinal (len $values.rack.ordinals)) }}
{{- end }}
{{- end -}}

"""The broker's keys compared with Kafka's, and the module that enforces each key."""

import ast
from pathlib import Path
from typing import Final

import pytest

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_definitions import BY_CONSTRUCTION, ConfigError, ConfigScope
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.config_tables import (
    BROKER_CONFIGS,
    GROUP_SETTINGS,
    LISTENER_SETTINGS,
    TOPIC_CONFIGS,
)
from odradek.cluster.metadata.node_settings import StartupSettings
from odradek.cluster.metadata.topic_settings import TopicSettings
from odradek.coordinator.transaction.hanging_transactions import MARGIN_MS

# What DescribeConfigs of a Kafka 4.3.1 gives as the default of these keys.
KAFKA: Final = {
    "controller.quota.window.num": ("INT", "11"),
    "controller.quota.window.size.seconds": ("INT", "1"),
    "quota.window.num": ("INT", "11"),
    "quota.window.size.seconds": ("INT", "1"),
    "auto.create.topics.enable": ("BOOLEAN", "true"),
    "auto.leader.rebalance.enable": ("BOOLEAN", "true"),
    "broker.rack": ("STRING", None),
    "compression.gzip.level": ("INT", "-1"),
    "compression.lz4.level": ("INT", "9"),
    "compression.type": ("STRING", "producer"),
    "compression.zstd.level": ("INT", "3"),
    "connections.max.idle.ms": ("LONG", "600000"),
    "cordoned.log.dirs": ("LIST", ""),
    "default.replication.factor": ("INT", "1"),
    "delete.topic.enable": ("BOOLEAN", "true"),
    "fetch.max.bytes": ("INT", "57671680"),
    "group.consumer.assignors": ("LIST", "uniform,range"),
    "group.consumer.heartbeat.interval.ms": ("INT", "5000"),
    "group.consumer.max.heartbeat.interval.ms": ("INT", "15000"),
    "group.consumer.max.session.timeout.ms": ("INT", "60000"),
    "group.consumer.max.size": ("INT", "2147483647"),
    "group.consumer.migration.policy": ("STRING", "bidirectional"),
    "group.consumer.min.heartbeat.interval.ms": ("INT", "5000"),
    "group.consumer.min.session.timeout.ms": ("INT", "45000"),
    "group.consumer.session.timeout.ms": ("INT", "45000"),
    "group.share.heartbeat.interval.ms": ("INT", "5000"),
    "group.share.max.heartbeat.interval.ms": ("INT", "15000"),
    "group.share.max.session.timeout.ms": ("INT", "60000"),
    "group.share.max.size": ("INT", "200"),
    "group.share.min.heartbeat.interval.ms": ("INT", "5000"),
    "group.share.min.session.timeout.ms": ("INT", "45000"),
    "group.share.session.timeout.ms": ("INT", "45000"),
    "group.initial.rebalance.delay.ms": ("INT", "3000"),
    "group.share.delivery.count.limit": ("INT", "5"),
    "group.share.max.delivery.count.limit": ("INT", "10"),
    "group.share.max.partition.max.record.locks": ("INT", "4000"),
    "group.share.max.record.lock.duration.ms": ("INT", "60000"),
    "group.share.max.share.sessions": ("INT", "2000"),
    "group.share.min.delivery.count.limit": ("INT", "2"),
    "group.share.min.partition.max.record.locks": ("INT", "100"),
    "group.share.min.record.lock.duration.ms": ("INT", "15000"),
    "group.share.partition.max.record.locks": ("INT", "2000"),
    "group.share.record.lock.duration.ms": ("INT", "30000"),
    "group.consumer.max.assignment.interval.ms": ("INT", "15000"),
    "group.consumer.min.assignment.interval.ms": ("INT", "0"),
    "group.share.max.assignment.interval.ms": ("INT", "15000"),
    "group.share.min.assignment.interval.ms": ("INT", "0"),
    "group.streams.max.assignment.interval.ms": ("INT", "15000"),
    "group.streams.min.assignment.interval.ms": ("INT", "0"),
    "group.max.session.timeout.ms": ("INT", "1800000"),
    "group.max.size": ("INT", "2147483647"),
    "group.min.session.timeout.ms": ("INT", "6000"),
    "group.streams.heartbeat.interval.ms": ("INT", "5000"),
    "group.streams.initial.rebalance.delay.ms": ("INT", "3000"),
    "group.streams.max.heartbeat.interval.ms": ("INT", "15000"),
    "group.streams.max.session.timeout.ms": ("INT", "60000"),
    "group.streams.max.size": ("INT", "2147483647"),
    "group.streams.max.standby.replicas": ("INT", "2"),
    "group.streams.min.heartbeat.interval.ms": ("INT", "5000"),
    "group.streams.min.session.timeout.ms": ("INT", "45000"),
    "group.streams.num.standby.replicas": ("INT", "0"),
    "group.streams.session.timeout.ms": ("INT", "45000"),
    "leader.imbalance.check.interval.seconds": ("LONG", "300"),
    "log.cleaner.delete.retention.ms": ("LONG", "86400000"),
    "log.cleaner.max.compaction.lag.ms": ("LONG", "9223372036854775807"),
    "log.cleaner.min.cleanable.ratio": ("DOUBLE", "0.5"),
    "log.cleaner.min.compaction.lag.ms": ("LONG", "0"),
    "log.cleanup.policy": ("LIST", "delete"),
    "log.flush.interval.messages": ("LONG", "9223372036854775807"),
    "log.index.interval.bytes": ("INT", "4096"),
    "log.index.size.max.bytes": ("INT", "10485760"),
    "log.message.timestamp.after.max.ms": ("LONG", "3600000"),
    "log.message.timestamp.before.max.ms": ("LONG", "9223372036854775807"),
    "log.message.timestamp.type": ("STRING", "CreateTime"),
    "log.preallocate": ("BOOLEAN", "false"),
    "log.retention.bytes": ("LONG", "-1"),
    "log.retention.check.interval.ms": ("LONG", "300000"),
    "log.retention.hours": ("INT", "168"),
    "log.retention.minutes": ("INT", None),
    "log.retention.ms": ("LONG", None),
    "log.roll.hours": ("INT", "168"),
    "log.roll.jitter.hours": ("INT", "0"),
    "log.roll.jitter.ms": ("LONG", None),
    "log.roll.ms": ("LONG", None),
    "log.segment.bytes": ("INT", "1073741824"),
    "log.segment.delete.delay.ms": ("LONG", "60000"),
    "max.connection.creation.rate": ("INT", "2147483647"),
    "max.connections": ("INT", "2147483647"),
    "max.connections.per.ip": ("INT", "2147483647"),
    "max.connections.per.ip.overrides": ("STRING", ""),
    "max.incremental.fetch.session.cache.slots": ("INT", "1000"),
    "message.max.bytes": ("INT", "1048588"),
    "min.insync.replicas": ("INT", "1"),
    "num.partitions": ("INT", "1"),
    "offset.metadata.max.bytes": ("INT", "4096"),
    "offsets.retention.check.interval.ms": ("LONG", "600000"),
    "offsets.retention.minutes": ("INT", "10080"),
    "offsets.topic.num.partitions": ("INT", "50"),
    "offsets.topic.replication.factor": ("SHORT", "3"),
    "producer.id.expiration.ms": ("INT", "86400000"),
    "replica.lag.time.max.ms": ("LONG", "30000"),
    "replica.selector.class": ("STRING", None),
    "share.coordinator.snapshot.update.records.per.snapshot": ("INT", "500"),
    "share.coordinator.state.topic.min.isr": ("SHORT", "2"),
    "share.coordinator.state.topic.num.partitions": ("INT", "50"),
    "share.coordinator.state.topic.replication.factor": ("SHORT", "3"),
    "share.coordinator.state.topic.segment.bytes": ("INT", "104857600"),
    "socket.request.max.bytes": ("INT", "104857600"),
    "telemetry.max.bytes": ("INT", "1048576"),
    "ssl.allow.dn.changes": ("BOOLEAN", "false"),
    "ssl.allow.san.changes": ("BOOLEAN", "false"),
    "ssl.cipher.suites": ("LIST", ""),
    "ssl.client.auth": ("STRING", "none"),
    "ssl.enabled.protocols": ("LIST", "TLSv1.2,TLSv1.3"),
    "ssl.key.password": ("PASSWORD", None),
    "ssl.keystore.certificate.chain": ("PASSWORD", None),
    "ssl.keystore.key": ("PASSWORD", None),
    "ssl.keystore.location": ("STRING", None),
    "ssl.keystore.password": ("PASSWORD", None),
    "ssl.keystore.type": ("STRING", "JKS"),
    "ssl.principal.mapping.rules": ("STRING", "DEFAULT"),
    "ssl.protocol": ("STRING", "TLSv1.3"),
    "ssl.truststore.certificates": ("PASSWORD", None),
    "ssl.truststore.location": ("STRING", None),
    "ssl.truststore.password": ("PASSWORD", None),
    "ssl.truststore.type": ("STRING", "JKS"),
    "transaction.max.timeout.ms": ("INT", "900000"),
    "transaction.partition.verification.enable": ("BOOLEAN", "true"),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("INT", "3600000"),
    "transaction.state.log.min.isr": ("INT", "2"),
    "transaction.state.log.num.partitions": ("INT", "50"),
    "transaction.state.log.replication.factor": ("SHORT", "3"),
    "transactional.id.expiration.ms": ("INT", "604800000"),
    "unclean.leader.election.enable": ("BOOLEAN", "false"),
}
OURS: Final = {
    "audit.log.path",
    "durability",
    "group.ephemeral.patterns",
    "group.ephemeral.ttl.ms",
    "group.lag.metrics",
    "internal.topics.replication.adaptive",
    "metrics.series.max",
    "proxy.protocol.enable",
    "proxy.protocol.trusted.addresses",
    "transaction.watchdog.abort.enable",
    "transaction.watchdog.interval.ms",
    "transaction.watchdog.margin.ms",
    "workers",
}
NODE_KEYS: Final = {field.definition.name for field in fields_of(StartupSettings)}
CHANGED_NODE_KEYS: Final = {
    "arena.bytes",
    "controlled.shutdown.timeout.ms",
    "log.format",
    "log.level",
    "processor.placement",
}
"""Those that can be set through the cluster, too."""
KIP_1191: Final = {
    "errors.deadletterqueue.auto.create.topics.enable": ("BOOLEAN", "false"),
    "errors.deadletterqueue.topic.name.prefix": ("STRING", "dlq."),
}
"""Of Kafka 4.4."""
FASTER: Final = {
    "broker.heartbeat.interval.ms": ("INT", "200"),
    "broker.session.timeout.ms": ("INT", "1000"),
    "group.consumer.assignment.interval.ms": ("INT", "100"),
    "group.streams.assignment.interval.ms": ("INT", "100"),
    "group.share.assignment.interval.ms": ("INT", "100"),
    "offsets.topic.segment.bytes": ("INT", "16777216"),
    "transaction.state.log.segment.bytes": ("INT", "16777216"),
}
"""Kafka's are 2000 and 9000: it takes that long to notice that a broker is dead; 1000, so that
members who join one after another wait for a second; and 100 MiB, all of which has to be read
before a coordinator can go on elsewhere."""
THROTTLES: Final = {
    "follower.replication.throttled.rate": ("LONG", "9223372036854775807"),
    "leader.replication.throttled.rate": ("LONG", "9223372036854775807"),
    "replica.alter.log.dirs.io.max.bytes.per.second": ("LONG", "9223372036854775807"),
}
"""KIP-73, KIP-113; Kafka describes them only once they are set."""
INSTALLATION: Final = {
    "advertised.listeners",
    "broker.id",
    "listeners",
    "log.dir",
    "log.dirs",
    "node.id",
}
"""Keys whose defaults depend on how the broker was set up."""
# Kafka leaves it unset and then takes log.flush.scheduler.interval.ms, which is "never".
NEVER: Final = {"log.flush.interval.ms": ("LONG", "9223372036854775807")}

# Of Kafka's StandardAuthorizer, which reads the last two by itself.
AUTHORIZER: Final = {
    "authorizer.class.name": ("STRING", ""),
    "super.users": ("STRING", ""),
    "allow.everyone.if.no.acl.found": ("BOOLEAN", "false"),
}

AUTHENTICATION: Final = {
    "listener.security.protocol.map": (
        "STRING",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    ),
    "connection.failed.authentication.delay.ms": ("INT", "100"),
    "connections.max.reauth.ms": ("LONG", "0"),
    "sasl.enabled.mechanisms": ("LIST", "GSSAPI"),
    "sasl.jaas.config": ("PASSWORD", None),
    "delegation.token.secret.key": ("PASSWORD", None),
    "delegation.token.max.lifetime.ms": ("LONG", "604800000"),
    "delegation.token.expiry.time.ms": ("LONG", "86400000"),
    "delegation.token.expiry.check.interval.ms": ("LONG", "3600000"),
    "sasl.oauthbearer.clock.skew.seconds": ("INT", "30"),
    "sasl.oauthbearer.expected.audience": ("LIST", ""),
    "sasl.oauthbearer.expected.issuer": ("STRING", None),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("LONG", "3600000"),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("LONG", "10000"),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("LONG", "100"),
    "sasl.oauthbearer.jwks.endpoint.url": ("STRING", None),
    "sasl.oauthbearer.scope.claim.name": ("STRING", "scope"),
    "sasl.oauthbearer.sub.claim.name": ("STRING", "sub"),
    "sasl.server.callback.handler.class": ("CLASS", None),
    "sasl.server.max.receive.size": ("INT", "524288"),
}
"""Of listeners."""

ROOT: Final = Path(__file__).parents[3]


def test_types_and_defaults_are_kafkas() -> None:
    ours = {
        name: (definition.type.name, definition.default)
        for name, definition in BROKER_CONFIGS.items()
        if name not in OURS | INSTALLATION | NODE_KEYS and definition.has_effect
    }
    assert ours == KAFKA | KIP_1191 | NEVER | FASTER | THROTTLES | AUTHORIZER | AUTHENTICATION


def test_every_default_is_a_value_that_may_be_set() -> None:
    for definition in BROKER_CONFIGS.values():
        if definition.default is not None:
            definition.parse(definition.default)


def test_every_default_of_topics_has_a_key_here() -> None:
    asked = {
        synonym.name for definition in TOPIC_CONFIGS.values() for synonym in definition.synonyms
    }
    assert asked <= BROKER_CONFIGS.keys()


def test_only_what_the_node_is_started_with_cannot_be_changed_while_it_runs() -> None:
    assert {
        name
        for name, definition in BROKER_CONFIGS.items()
        if definition.has_effect and definition.scope is ConfigScope.READ_ONLY
    } == {
        "audit.log.path",
        "broker.id",
        "broker.rack",
        "delegation.token.secret.key",
        "log.dir",
        "log.dirs",
        "node.id",
        *(NODE_KEYS - CHANGED_NODE_KEYS),
    }


# The names that some keys have where they are enforced: there they are parts of other structures.
CALLED_THERE: Final = {
    "advertised.listeners": "advertised_host",
    "listener.security.protocol.map": "protocol_map",
    "broker.rack": "rack",
    "cluster.secret": "cluster_secrets",
    "controlled.shutdown.timeout.ms": "controlled_shutdown_ms",
    "http.listen": "http_port",
    "peer.listen": "peer_port",
    "routers": "router_count",
    "stores": "store_count",
    "cleanup.policy": "cleanup_delete",
    "connections.max.idle.ms": "connections_idle_ms_max",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "session_timeout_max_ms",
    "group.max.size": "size_max",
    "group.min.session.timeout.ms": "session_timeout_min_ms",
    "group.protocol.allow": "allowed_protocols",
    "group.rewind.by.commit.enable": "rewind_by_commit_groups",
    "group.share.max.share.sessions": "sessions_max",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "max.connection.creation.rate": "creation_rate_max",
    "max.connections": "connections_max",
    "max.connections.per.ip": "connections_per_ip_max",
    "max.connections.per.ip.overrides": "connections_per_ip_max_overrides",
    "max.incremental.fetch.session.cache.slots": "slots_max",
    "offset.metadata.max.bytes": "offset_metadata_bytes_max",
    "offsets.retention.check.interval.ms": "retention_check_interval_ms",
    "offsets.retention.minutes": "offsets_retention_ms",
    "share.coordinator.snapshot.update.records.per.snapshot": "updates_per_snapshot",
    "share.redelivery.backoff.factor": "redelivery_ms",
    "share.redelivery.delay.ms": "redelivery_ms",
    "share.auto.offset.reset": "share_group_settings",
    "share.isolation.level": "share_group_settings",
    "share.renew.acknowledge.enable": "share_group_settings",
    "socket.request.max.bytes": "request_bytes_max",
    "transaction.max.timeout.ms": "timeout_max_ms",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "expiry_check_interval_ms",
    "transactional.id.expiration.ms": "expiration_ms",
}
FIELDS: Final = {
    field.definition.name: field
    for kind in (
        TopicSettings,
        BrokerSettings,
        StartupSettings,
        *LISTENER_SETTINGS,
        *GROUP_SETTINGS,
    )
    for field in fields_of(kind)
}


def names_in(source: str) -> set[str]:
    """Every attribute, name and argument of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            found.add(node.arg)
    return found


def source_of(module: str) -> str:
    return (ROOT / (module.removeprefix("odradek.").replace(".", "/") + ".py")).read_text()


@pytest.mark.parametrize("key", FIELDS)
def test_the_enforcing_module_reads_its_key(key: str) -> None:
    field = FIELDS[key]
    for broker_key in field.broker_keys:
        assert broker_key.enforced_by in (
            field.definition.enforced_by,
            "odradek.cluster.controller.config_checks",
        )
    if field.definition.enforced_by != BY_CONSTRUCTION:
        names = names_in(source_of(field.definition.enforced_by))
        assert CALLED_THERE.get(key, field.name) in names


def test_keys_true_by_construction_are_listed() -> None:
    assert [
        key for key, field in FIELDS.items() if field.definition.enforced_by == BY_CONSTRUCTION
    ] == [
        "file.delete.delay.ms",
        "index.interval.bytes",
        "preallocate",
        "segment.index.bytes",
        "log.dir",
        "broker.id",
        "node.id",
    ]


WATCHDOG: Final = [key for key in BROKER_CONFIGS if ".watchdog." in key]


def test_the_watchdog_does_not_abort_by_default() -> None:
    assert {key: BROKER_CONFIGS[key].default for key in WATCHDOG} == {
        "transaction.watchdog.abort.enable": "false",
        "transaction.watchdog.interval.ms": "60000",
        "transaction.watchdog.margin.ms": str(MARGIN_MS),
    }
    assert {BROKER_CONFIGS[key].scope for key in WATCHDOG} == {ConfigScope.CLUSTER}


def test_the_watchdog_interval_has_a_minimum() -> None:
    with pytest.raises(ConfigError, match="100"):
        BROKER_CONFIGS["transaction.watchdog.interval.ms"].parse("99")


def test_connection_limits_of_single_addresses_are_parsed() -> None:
    field = FIELDS["max.connections.per.ip.overrides"]
    assert field.value("") == ()
    assert field.value("127.0.0.1:200, ::1:3") == (("127.0.0.1", 200), ("::1", 3))
    for bad in ("a", "a:", "a:-1", ":3", "a:1;b:2"):
        with pytest.raises(ConfigError):
            field.definition.parse(bad)

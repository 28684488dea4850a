"""Kafka's keys that mean nothing here: accepted and validated as in Kafka, without effect.

Tools and configurations written for Kafka set them. A value that would change what a user gets, in
a way that does not exist here, is refused with the reason (`_ONLY`). The lists are those of Kafka
4.3.1 without its internal keys; keys that older releases had are described only if they are set.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    INT64_MAX,
    WITHOUT_EFFECT,
    ConfigDefinition,
    ConfigScope,
    ConfigSynonym,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    one_of,
    satisfying,
)

_Table = Mapping[str, str]

_REQUESTS: Final = "The router and the workers share requests over rings and have no thread pools."
_REPLICATION: Final = (
    "A follower fetches from each leader over one connection for each store, at its own pace."
)
_LOG: Final = (
    "The owner of a log compacts and flushes it between its requests; it has no threads for that."
)
_COORD: Final = (
    "A coordinator batches what has arrived when it writes, and reads its log by itself."
)
_QUORUM: Final = (
    "The quorum is set up by `peers`, `peer.listen` and `join`; each node is broker and controller."
)
_METRICS: Final = "Metrics are served over HTTP at `http.listen`."
_QUOTAS: Final = "Replication throttles are exact, without windows."
_SECURITY: Final = "Listeners speak PLAINTEXT, without authentication and authorization."
_JAVA_TLS: Final = (
    "TLS is that of OpenSSL, and nodes connect to each other with keys of their own (CURVE)."
)
_TIERED: Final = "There is no tiered storage."
_PLUGINS: Final = "Java classes cannot be loaded."

# Why there is no effect -> keys: name, type, default (- for null), bounds if any, scope if it is
# not read-only.
_BROKER_KEYS: Final[_Table] = {
    _REQUESTS: """
        background.threads int 10 >=1 broker
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        max.request.partition.size.limit int 2000 >=1
        num.io.threads int 8 >=1 broker
        num.network.threads int 3 >=1 broker
        producer.purgatory.purge.interval.requests int 1000
        queued.max.request.bytes long -1
        queued.max.requests int 500 >=1
        request.timeout.ms int 30000
        share.fetch.purgatory.purge.interval.requests int 1000
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        socket.listen.backlog.size int 50 >=1
        socket.receive.buffer.bytes int 102400
        socket.send.buffer.bytes int 102400
    """,
    _REPLICATION: """
        num.replica.alter.log.dirs.threads int -
        num.replica.fetchers int 1 >=1 broker
        replica.fetch.backoff.ms int 1000 >=0
        replica.fetch.max.bytes int 1048576 >=0
        replica.fetch.min.bytes int 1
        replica.fetch.response.max.bytes int 10485760 >=0
        replica.fetch.wait.max.ms int 500
        replica.high.watermark.checkpoint.interval.ms long 5000
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
    """,
    _LOG: """
        log.cleaner.backoff.ms long 15000 >=0 broker
        log.cleaner.dedupe.buffer.size long 134217728 broker
        log.cleaner.enable boolean true
        log.cleaner.io.buffer.load.factor double 0.9 broker
        log.cleaner.io.buffer.size int 524288 >=0 broker
        log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 broker
        log.cleaner.threads int 1 >=0 broker
        log.dir.failure.timeout.ms long 30000 >=1
        log.flush.offset.checkpoint.interval.ms int 60000 >=0
        log.flush.scheduler.interval.ms long 9223372036854775807
        log.flush.start.offset.checkpoint.interval.ms int 60000 >=0
        num.recovery.threads.per.data.dir int 2 >=1 broker
    """,
    _COORD: """
        add.partitions.to.txn.retry.backoff.max.ms int 100 >=0
        add.partitions.to.txn.retry.backoff.ms int 20 >=1
        group.coordinator.append.linger.ms int -1 >=-1
        group.coordinator.background.threads int 2 >=1
        group.coordinator.cached.buffer.max.bytes int 1048588 >=524288 broker
        group.coordinator.rebalance.protocols list classic,consumer,streams consumer|classic|share|streams
        group.coordinator.threads int 4 >=1
        group.share.assignors list simple
        offsets.commit.timeout.ms int 5000 >=1
        offsets.load.buffer.size int 5242880 >=1
        offsets.topic.compression.codec int 0
        share.coordinator.append.linger.ms int -1 >=-1
        share.coordinator.cached.buffer.max.bytes int 1048588 >=524288 broker
        share.coordinator.load.buffer.size int 5242880 >=1
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.threads int 1 >=1
        share.coordinator.write.timeout.ms int 5000 >=1
        transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 >=1
        transaction.state.log.load.buffer.size int 5242880 >=1
        transaction.two.phase.commit.enable boolean false
    """,  # noqa: E501 - Kafka's class names
    _QUORUM: """
        controlled.shutdown.enable boolean true
        controller.listener.names list -
        controller.quorum.append.linger.ms int 25 >=0
        controller.quorum.auto.join.enable boolean false
        controller.quorum.bootstrap.servers list ""
        controller.quorum.election.backoff.max.ms int 1000 >=0
        controller.quorum.election.timeout.ms int 1000 >=0
        controller.quorum.fetch.max.bytes int 1048576 >=1
        controller.quorum.fetch.snapshot.max.bytes int 1048576 >=1
        controller.quorum.fetch.timeout.ms int 2000 >=0
        controller.quorum.request.timeout.ms int 2000 >=0
        controller.quorum.retry.backoff.ms int 20 >=0
        controller.quorum.voters list ""
        controller.socket.timeout.ms int 30000
        early.start.listeners list -
        initial.broker.registration.timeout.ms int 60000
        inter.broker.listener.name string -
        metadata.log.dir string -
        metadata.log.max.record.bytes.between.snapshots long 20971520 >=1
        metadata.log.max.snapshot.interval.ms long 3600000 >=0
        metadata.log.segment.bytes int 1073741824 >=8388608
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500 >=0
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        process.roles list - broker|controller
        security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
    """,
    _METRICS: """
        kafka.metrics.polling.interval.secs int 10 >=1
        kafka.metrics.reporters list ""
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter broker
        metrics.num.samples int 2 >=1
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000 >=1
    """,
    _QUOTAS: """
        alter.log.dirs.replication.quota.window.num int 11 >=1
        alter.log.dirs.replication.quota.window.size.seconds int 1 >=1
        client.quota.callback.class class -
        replication.quota.window.num int 11 >=1
        replication.quota.window.size.seconds int 1 >=1
    """,
    _SECURITY: """
        principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder per-broker
        sasl.client.callback.handler.class class -
        sasl.kerberos.kinit.cmd string /usr/bin/kinit per-broker
        sasl.kerberos.min.time.before.relogin long 60000 per-broker
        sasl.kerberos.principal.to.local.rules list DEFAULT per-broker
        sasl.kerberos.service.name string - per-broker
        sasl.kerberos.ticket.renew.jitter double 0.05 per-broker
        sasl.kerberos.ticket.renew.window.factor double 0.8 per-broker
        sasl.login.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300 per-broker
        sasl.login.refresh.min.period.seconds short 60 per-broker
        sasl.login.refresh.window.factor double 0.8 per-broker
        sasl.login.refresh.window.jitter double 0.05 per-broker
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.mechanism.inter.broker.protocol string GSSAPI per-broker
        sasl.oauthbearer.assertion.algorithm string RS256 ES256|RS256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.token.endpoint.url string -
        security.providers string -
    """,  # noqa: E501 - Kafka's class names
    _JAVA_TLS: """
        ssl.endpoint.identification.algorithm string https per-broker
        ssl.engine.factory.class class - per-broker
        ssl.keymanager.algorithm string SunX509 per-broker
        ssl.provider string - per-broker
        ssl.secure.random.implementation string - per-broker
        ssl.trustmanager.algorithm string PKIX per-broker
    """,
    _TIERED: """
        follower.fetch.last.tiered.offset.enable boolean false broker
        log.local.retention.bytes long -2 >=-2 broker
        log.local.retention.ms long -2 >=-2 broker
        remote.fetch.max.wait.ms int 500 >=1 broker
        remote.list.offsets.request.timeout.ms long 30000 >=1 broker
        remote.log.index.file.cache.total.size.bytes long 1073741824 >=1 broker
        remote.log.manager.copier.thread.pool.size int 10 >=1 broker
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 >=1 broker
        remote.log.manager.copy.quota.window.num int 11 >=1
        remote.log.manager.copy.quota.window.size.seconds int 1 >=1
        remote.log.manager.expiration.thread.pool.size int 10 >=1 broker
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 >=1 broker
        remote.log.manager.fetch.quota.window.num int 11 >=1
        remote.log.manager.fetch.quota.window.size.seconds int 1 >=1
        remote.log.manager.follower.thread.pool.size int 2 >=1 broker
        remote.log.manager.task.interval.ms long 30000 >=1
        remote.log.manager.thread.pool.size int 2 >=1
        remote.log.metadata.custom.metadata.max.bytes int 128 >=0
        remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.reader.max.pending.tasks int 100 >=1
        remote.log.reader.threads int 10 >=1 broker
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
    """,  # noqa: E501 - Kafka's class names
    _PLUGINS: """
        alter.config.policy.class.name class -
        config.providers list "" broker
        create.topic.policy.class.name class -
    """,
}

_TOPIC_KEYS: Final[_Table] = {
    _TIERED: """
        local.retention.bytes long -2 >=-2
        local.retention.ms long -2 >=-2
        remote.log.copy.disable boolean false
        remote.log.delete.on.disable boolean false
        remote.storage.enable boolean false
    """
}

_BROKER_KEY_OF: Final = {
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
}
"""The broker's key that has the default of a topic's."""

_OF_OLDER_RELEASES: Final = "It is a key of older releases of Kafka."
_OLDER_BROKER_KEYS: Final[_Table] = {
    _OF_OLDER_RELEASES: """
        broker.id.generation.enable boolean true
        control.plane.listener.name string -
        controlled.shutdown.max.retries int 3
        controlled.shutdown.retry.backoff.ms long 5000
        inter.broker.protocol.version version -
        leader.imbalance.per.broker.percentage int 10
        log.message.downconversion.enable boolean true
        log.message.format.version version -
        log.message.timestamp.difference.max.ms long 9223372036854775807 >=0
        offsets.commit.required.acks short -1
        reserved.broker.max.id int 1000 >=0
        unstable.api.versions.enable boolean false
        unstable.feature.versions.enable boolean false
    """
}
_OLDER_TOPIC_KEYS: Final[_Table] = {
    _OF_OLDER_RELEASES: """
        message.downconversion.enable boolean true
        message.format.version version -
        message.timestamp.difference.max.ms long 9223372036854775807 >=0
    """
}

_TIMESTAMP_BOUNDS: Final = (
    "Kafka has replaced it. Set message.timestamp.before.max.ms and message.timestamp.after.max.ms."
)
_ONLY: Final[Mapping[str, tuple[tuple[ConfigValue, ...], str]]] = {
    "alter.config.policy.class.name": ((), _PLUGINS),
    "client.quota.callback.class": ((), _PLUGINS),
    "config.providers": (((),), "Values are looked up in the node's own configuration only."),
    "create.topic.policy.class.name": ((), _PLUGINS),
    "group.share.assignors": ((("simple",),), "There is one assignor of share groups: simple."),
    "log.cleaner.enable": (
        (True,),
        "Compaction cannot be switched off. Set cleanup.policy=delete for the topics.",
    ),
    "log.message.timestamp.difference.max.ms": ((INT64_MAX,), _TIMESTAMP_BOUNDS),
    "message.timestamp.difference.max.ms": ((INT64_MAX,), _TIMESTAMP_BOUNDS),
    "remote.log.storage.system.enable": ((False,), _TIERED),
    "remote.storage.enable": (
        (False,),
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with"
        " remote log storage.",
    ),
    "transaction.two.phase.commit.enable": (
        (False,),
        "Odradek has no two-phase commit. Leave it false.",
    ),
}
"""The only values of some keys that have no effect, and why another one is refused."""

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+){0,2}(-IV[0-9]+)?\Z")
_VERSION_VALIDATOR: Final = satisfying(
    "Must be a release of Kafka, as in 3.0 or 3.0-IV1",
    lambda value: _VERSION.match(str(value)) is not None,
)
_SCOPES: Final = {"broker": ConfigScope.BROKER, "per-broker": ConfigScope.PER_BROKER}


def _definitions(table: _Table, scope: ConfigScope) -> Iterator[ConfigDefinition]:
    for reason, rows in table.items():
        for row in rows.split("\n"):
            if row.strip():
                yield _definition(row.split(), reason, scope)


def _definition(words: list[str], reason: str, scope: ConfigScope) -> ConfigDefinition:
    name, kind, default, *rest = words
    is_version = kind == "version"
    config_type = ConfigType.STRING if is_version else ConfigType[kind.upper()]
    validator = _VERSION_VALIDATOR if is_version else None
    for word in rest:
        if word in _SCOPES:
            scope = _SCOPES[word]
        else:
            validator = _validator(word)
    if name in _ONLY:
        values, refusal = _ONLY[name]
        validator = satisfying(refusal, lambda value: value in values)
    return ConfigDefinition(
        name=name,
        type=config_type,
        default={"-": None, '""': ""}.get(default, default),
        documentation=f"Accepted for compatibility with Kafka, without effect. {reason}",
        enforced_by=WITHOUT_EFFECT,
        validator=validator,
        scope=scope,
        synonyms=(ConfigSynonym(_BROKER_KEY_OF[name]),) if name in _BROKER_KEY_OF else (),
    )


def _validator(bounds: str) -> Validator:
    if bounds.startswith(">="):
        return at_least(int(bounds[2:]))
    low, is_range, high = bounds.partition("..")
    return between(int(low), int(high)) if is_range else one_of(*bounds.split("|"))


TOPIC_KEYS: Final = tuple(_definitions(_TOPIC_KEYS, ConfigScope.BROKER))
OLDER_TOPIC_KEYS: Final = tuple(_definitions(_OLDER_TOPIC_KEYS, ConfigScope.BROKER))
BROKER_KEYS: Final = tuple(_definitions(_BROKER_KEYS, ConfigScope.READ_ONLY))
OLDER_BROKER_KEYS: Final = tuple(_definitions(_OLDER_BROKER_KEYS, ConfigScope.READ_ONLY))

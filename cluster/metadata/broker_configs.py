"""The keys of a broker's configuration, with Kafka's names, defaults and limits (4.3).

Two kinds: defaults for topics that set nothing themselves (`message.max.bytes`, `log.*`), and the
broker's own limits and habits. Many that Kafka reads once at start may be changed here while the
broker runs: the scope says so. What has to be the same for all is of scope CLUSTER.
"""

from dataclasses import replace
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    BY_CONSTRUCTION,
    INT32_MAX,
    INT64_MAX,
    ConfigDefinition,
    ConfigScope,
    ConfigSynonym,
    ConfigType,
    Definitions,
    Importance,
    at_least,
    between,
    define,
    definitions_by_name,
    list_of,
    one_of,
)
from odradek.cluster.metadata.group_configs import CONSUMER_GROUP_CONFIGS
from odradek.cluster.metadata.group_policy_configs import POLICY_BROKER_CONFIGS
from odradek.cluster.metadata.share_coordinator_configs import SHARE_COORDINATOR_CONFIGS
from odradek.cluster.metadata.share_group_configs import SHARE_GROUP_BROKER_CONFIGS
from odradek.cluster.metadata.share_record_configs import SHARE_RECORD_CONFIGS
from odradek.cluster.metadata.streams_group_configs import STREAMS_BROKER_CONFIGS
from odradek.cluster.metadata.topic_configs import HOUR_MS, MINUTE_MS, TOPIC_CONFIGS
from odradek.cluster.metadata.transaction_configs import TRANSACTION_CONFIGS

DURABILITY: Final = one_of("interval", "commit")
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTOR: Final = one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR)


def _topic_default(
    name: str, topic_key: str, *, scope: ConfigScope = ConfigScope.BROKER
) -> ConfigDefinition:
    """The key that gives a topic key's default: the same values, the same limits."""
    topic_definition = TOPIC_CONFIGS[topic_key]
    assert name in {synonym.name for synonym in topic_definition.synonyms}
    return replace(
        topic_definition,
        name=name,
        documentation=f"The {topic_key} of topics that set none: "
        f"{topic_definition.documentation[0].lower()}{topic_definition.documentation[1:]}",
        scope=scope,
        synonyms=(),
    )


def _time_default(
    name: str, topic_key: str, synonyms: tuple[ConfigSynonym, ...], *, default: str | None = None
) -> ConfigDefinition:
    """A topic default in milliseconds that has synonyms in coarser units, one of which has the
    default value.
    """
    return replace(_topic_default(name, topic_key), default=default, synonyms=synonyms)


def _coarse_time(
    name: str, topic_key: str, unit: str, default: int | None, *, low: int
) -> ConfigDefinition:
    """A topic default in minutes or hours; only in the broker's own configuration, as in Kafka."""
    return define(
        name,
        ConfigType.INT,
        default,
        f"The {topic_key} of topics that set none, in {unit}; the key in milliseconds wins.",
        enforced_by=TOPIC_CONFIGS[topic_key].enforced_by,
        validator=at_least(low),
        importance=Importance.LOW,
        scope=ConfigScope.READ_ONLY,
    )


_TOPIC_DEFAULTS: Final = (
    _topic_default("compression.gzip.level", "compression.gzip.level"),
    _topic_default("compression.lz4.level", "compression.lz4.level"),
    _topic_default("compression.type", "compression.type"),
    _topic_default("compression.zstd.level", "compression.zstd.level"),
    _topic_default("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    _topic_default("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
    _topic_default("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    _topic_default("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    _topic_default("log.cleanup.policy", "cleanup.policy"),
    _topic_default("log.flush.interval.messages", "flush.messages"),
    _topic_default("log.flush.interval.ms", "flush.ms"),
    _topic_default("log.index.interval.bytes", "index.interval.bytes"),
    _topic_default("log.index.size.max.bytes", "segment.index.bytes"),
    _topic_default("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    _topic_default("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    _topic_default("log.message.timestamp.type", "message.timestamp.type"),
    _topic_default("log.preallocate", "preallocate"),
    _topic_default("log.retention.bytes", "retention.bytes"),
    _time_default(
        "log.retention.ms",
        "retention.ms",
        (
            ConfigSynonym("log.retention.minutes", MINUTE_MS),
            ConfigSynonym("log.retention.hours", HOUR_MS),
        ),
    ),
    _coarse_time("log.retention.minutes", "retention.ms", "minutes", None, low=-1),
    _coarse_time("log.retention.hours", "retention.ms", "hours", 168, low=-1),
    _time_default("log.roll.ms", "segment.ms", (ConfigSynonym("log.roll.hours", HOUR_MS),)),
    _coarse_time("log.roll.hours", "segment.ms", "hours", 168, low=1),
    _time_default(
        "log.roll.jitter.ms",
        "segment.jitter.ms",
        (ConfigSynonym("log.roll.jitter.hours", HOUR_MS),),
    ),
    _coarse_time("log.roll.jitter.hours", "segment.jitter.ms", "hours", 0, low=0),
    _topic_default("log.segment.bytes", "segment.bytes"),
    _topic_default("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    _topic_default("message.max.bytes", "max.message.bytes"),
    _topic_default("min.insync.replicas", "min.insync.replicas", scope=ConfigScope.CLUSTER),
    _topic_default(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        scope=ConfigScope.CLUSTER,
    ),
)

_TOPICS: Final = (
    define(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether a topic that a client asks for and that does not exist is created.",
        enforced_by="odradek.node.router.handlers.metadata",
        importance=Importance.HIGH,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "default.replication.factor",
        ConfigType.INT,
        1,
        "How many replicas a topic gets that does not say how many.",
        enforced_by="odradek.cluster.controller.topics",
        validator=between(1, 2**15 - 1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "delete.topic.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether topics may be deleted at all.",
        enforced_by="odradek.cluster.controller.topics",
        importance=Importance.HIGH,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "num.partitions",
        ConfigType.INT,
        1,
        "How many partitions a topic gets that does not say how many.",
        enforced_by="odradek.cluster.controller.topics",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
)

_CONNECTIONS: Final = (
    define(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "After how long without a request a client's connection is closed.",
        enforced_by="odradek.node.wire.connection",
        validator=at_least(1),
    ),
    define(
        "fetch.max.bytes",
        ConfigType.INT,
        57_671_680,
        "The most that one fetch is answered, whatever the client asks for; one batch is always"
        " given, however large.",
        enforced_by="odradek.node.router.handlers.fetch",
        validator=at_least(1024),
    ),
    define(
        "max.connections",
        ConfigType.INT,
        INT32_MAX,
        "How many client connections a broker holds at once.",
        enforced_by="odradek.node.wire.limits",
        validator=at_least(0),
    ),
    define(
        "max.connections.per.ip",
        ConfigType.INT,
        INT32_MAX,
        "How many connections a broker accepts from one address.",
        enforced_by="odradek.node.wire.limits",
        validator=at_least(0),
    ),
    define(
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        "How many incremental fetch sessions a broker remembers.",
        enforced_by="odradek.node.router.fetch_sessions",
        validator=at_least(0),
    ),
    define(
        "socket.request.max.bytes",
        ConfigType.INT,
        104_857_600,
        "The largest request; a connection that announces a larger one is closed. More than half"
        " of arena.bytes is not taken.",
        enforced_by="odradek.node.wire.connection",
        validator=at_least(1),
        importance=Importance.HIGH,
    ),
)

_REPLICATION: Final = (
    define(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether preferred leaders that are in sync again get the lead back by themselves.",
        enforced_by="odradek.cluster.controller.controller",
        importance=Importance.HIGH,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "broker.heartbeat.interval.ms",
        ConfigType.INT,
        200,
        "How often a broker says to the controller that it is alive.",
        enforced_by="odradek.cluster.controller.brokers",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "broker.session.timeout.ms",
        ConfigType.INT,
        1000,
        "After how long without a sign of life a broker is fenced and loses the lead.",
        enforced_by="odradek.cluster.controller.brokers",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "cordoned.log.dirs",
        ConfigType.LIST,
        "",
        "* while the broker shall be given no new replicas, as when it is drained (KIP-1066);"
        " those it has stay until they are moved.",
        enforced_by="odradek.cluster.controller.state",
        validator=list_of("*"),
        scope=ConfigScope.ONE_BROKER,
    ),
    define(
        "follower.replication.throttled.rate",
        ConfigType.LONG,
        INT64_MAX,
        "How many bytes per second a broker fetches at most for the replicas that their topics'"
        " follower.replication.throttled.replicas name.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=at_least(0),
    ),
    define(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "How often it is looked whether preferred leaders can get the lead back.",
        enforced_by="odradek.cluster.controller.controller",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "leader.replication.throttled.rate",
        ConfigType.LONG,
        INT64_MAX,
        "How many bytes per second a broker sends at most to followers out of sync, of the"
        " partitions that their topics' leader.replication.throttled.replicas name.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=at_least(0),
    ),
    define(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        "Who is to serve a consumer: the leader, or with Kafka's RackAwareReplicaSelector an"
        " in-sync replica in the rack that the consumer names as its client.rack.",
        enforced_by="odradek.node.router.handlers.fetch",
        validator=REPLICA_SELECTOR,
    ),
)

_GROUPS: Final = (
    define(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "How long an empty classic group waits for more members after the first has joined.",
        enforced_by="odradek.coordinator.group.classic.group",
        validator=at_least(0),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.lag.metrics",
        ConfigType.STRING,
        "topic",
        "What the metrics tell of how far groups are behind that have committed offsets: a line"
        " for each group and topic, for each partition, or none.",
        enforced_by="odradek.node.router.group_lag_metrics",
        validator=one_of("none", "topic", "partition"),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        1_800_000,
        "The longest session timeout that a member of a classic group may ask for.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.max.size",
        ConfigType.INT,
        INT32_MAX,
        "How many members a classic group may have.",
        enforced_by="odradek.coordinator.group.classic.group",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        6000,
        "The shortest session timeout that a member of a classic group may ask for.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "How long the text may be that a client commits with an offset.",
        enforced_by="odradek.coordinator.group.offsets.committed_offsets",
        validator=at_least(0),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "How often committed offsets are looked through for expired ones.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "How long the offsets of a group without members are kept.",
        enforced_by="odradek.coordinator.group.administration.group_cleanup",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "How many partitions __consumer_offsets gets; it cannot be changed once the topic exists.",
        enforced_by="odradek.node.router.shards.group_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "How many replicas __consumer_offsets gets, if there are that many brokers.",
        enforced_by="odradek.node.router.shards.group_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        16_777_216,
        "The segment.bytes that __consumer_offsets is created with. Whoever takes a coordinator"
        " over reads as much of its log, and what compaction has left: about 0.3 s.",
        enforced_by="odradek.node.router.shards.group_coordinator_type",
        validator=at_least(1 << 20),
        scope=ConfigScope.READ_ONLY,
    ),
)

_LOGS: Final = (
    define(
        "workers",
        ConfigType.INT,
        None,
        "How many processes own the partitions of a broker, up to as many as it has stores. A"
        " change while it runs moves stores between them at once; their data stay where they are.",
        enforced_by="odradek.node.controller.process",
        validator=between(1, 64),
    ),
    define(
        "durability",
        ConfigType.STRING,
        "interval",
        "What an acknowledged append has survived: 'interval' the broker's process, and within a"
        " second the machine; 'commit' the machine, as it is on the disk before the answer.",
        enforced_by="odradek.storage.log_loader",
        validator=DURABILITY,
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        300_000,
        "How often logs are looked through for what retention may drop.",
        enforced_by="odradek.storage.maintenance",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "After how long without a batch a producer's sequence numbers are forgotten.",
        enforced_by="odradek.storage.store",
        validator=at_least(1),
        importance=Importance.LOW,
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "replica.lag.time.max.ms",
        ConfigType.LONG,
        30_000,
        "After how long without having caught up a follower leaves the in-sync replicas.",
        enforced_by="odradek.node.worker.process",
        validator=at_least(1),
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
)

_IDENTITY: Final = (
    define(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "The addresses that clients are told; without any, the one at which they reached us.",
        enforced_by="odradek.node.controller.bootstrap",
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "broker.rack",
        ConfigType.STRING,
        None,
        "The rack or zone of this broker, shown to clients.",
        enforced_by="odradek.node.controller.bootstrap",
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "listeners",
        ConfigType.LIST,
        None,
        "The addresses on which the broker listens.",
        enforced_by="odradek.node.config",
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "log.dirs",
        ConfigType.LIST,
        None,
        "The folder of the broker's data.",
        enforced_by=BY_CONSTRUCTION,
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "node.id",
        ConfigType.INT,
        0,
        "The broker's number in the cluster.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(0),
        importance=Importance.HIGH,
        scope=ConfigScope.READ_ONLY,
    ),
)

BROKER_CONFIGS: Final[Definitions] = definitions_by_name(
    sorted(
        (
            *_TOPIC_DEFAULTS,
            *_TOPICS,
            *_CONNECTIONS,
            *_REPLICATION,
            *_GROUPS,
            *CONSUMER_GROUP_CONFIGS,
            *STREAMS_BROKER_CONFIGS,
            *SHARE_COORDINATOR_CONFIGS,
            *POLICY_BROKER_CONFIGS,
            *TRANSACTION_CONFIGS,
            *SHARE_RECORD_CONFIGS,
            *SHARE_GROUP_BROKER_CONFIGS,
            *_LOGS,
            *_IDENTITY,
        ),
        key=lambda definition: definition.name,
    )
)

"""The settings of a broker: Kafka's keys, with its names, defaults and bounds (4.3), and ours.

Many that Kafka reads at start only are dynamic here: see the scope.
What all brokers must agree on is of scope CLUSTER. The defaults of topics and of groups are derived
from `topic_settings` and `group_settings`; Kafka's keys without effect are in
`no_effect_configs`.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from odradek.cluster.metadata.authorizer_settings import AuthorizerSettings
from odradek.cluster.metadata.config_definitions import (
    BY_CONSTRUCTION,
    INT32_MAX,
    INT64_MAX,
    ConfigScope,
    at_least,
    between,
    one_of,
    satisfying,
)
from odradek.cluster.metadata.config_schema import (
    Strings,
    boolean,
    converted,
    integer,
    long,
    settings,
    short,
    string,
    strings,
)
from odradek.cluster.metadata.delegation_token_settings import DelegationTokenSettings
from odradek.cluster.metadata.group_settings import (
    ConsumerGroupSettings,
    GroupPolicySettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.listener_addresses import (
    DEFAULT_PROTOCOLS,
    parse_addresses,
    parse_protocol_map,
    parsed_by,
)
from odradek.cluster.metadata.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
BROKER: Final = ConfigScope.BROKER
_LIMIT_OF_ADDRESS: Final = re.compile(r"\s*[^\s,;]+:[0-9]{1,9}\s*")
READ_ONLY: Final = ConfigScope.READ_ONLY
PER_BROKER: Final = ConfigScope.PER_BROKER


def _partition_count(topic: str, kind: str) -> int:
    return integer(
        50,
        f"How many partitions {topic} gets. It cannot be changed once the topic exists.",
        enforced_by=f"odradek.node.router.shards.{kind}_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    )


def _replication_factor(topic: str, kind: str) -> int:
    return short(
        3,
        f"How many replicas {topic} gets. It is not created before there are that many brokers,"
        " unless internal.topics.replication.adaptive is set.",
        enforced_by=f"odradek.node.router.shards.{kind}_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    )


def _segment_bytes(topic: str, kind: str, default: int) -> int:
    return integer(
        default,
        f"The segment.bytes that {topic} is created with. A broker that takes a coordinator over"
        " reads that much of its log, and what compaction has left.",
        enforced_by=f"odradek.node.router.shards.{kind}_coordinator_type",
        validator=at_least(1 << 20),
        scope=ConfigScope.CLUSTER,
    )


def _limits_by_address(text: str) -> tuple[tuple[str, int], ...]:
    parts = (part.strip().rpartition(":") for part in text.split(",") if part.strip())
    return tuple((address, int(limit)) for address, _, limit in parts)


CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
ANY_LOG_DIR: Final = "*"
"""In cordoned.log.dirs: all of the broker's log directories."""
_LOG_DIRS: Final = satisfying(
    "Must be * or absolute paths of log.dirs",
    lambda value: all(
        each == ANY_LOG_DIR or str(each).startswith("/")
        for each in (value if isinstance(value, tuple) else (value,))
    ),
)


@settings(ConfigResourceType.BROKER)
class BrokerSettings:
    """Every key of a broker that has an effect and is not a topic's default."""

    auto_create_topics_enable: bool = boolean(
        True,
        "Whether a topic is created when a client asks for its metadata and it does not exist.",
        enforced_by="odradek.node.router.handlers.metadata",
    )
    default_replication_factor: int = integer(
        1,
        "The replication factor of topics that are created without one.",
        enforced_by="odradek.cluster.controller.topics",
        validator=between(1, 2**15 - 1),
    )
    delete_topic_enable: bool = boolean(
        True,
        "Whether topics may be deleted.",
        enforced_by="odradek.cluster.controller.topics",
    )
    num_partitions: int = integer(
        1,
        "The number of partitions of topics that are created without one.",
        enforced_by="odradek.cluster.controller.topics",
        validator=at_least(1),
    )
    quota_window_num: int = integer(
        11,
        "How many samples the rate of a client quota is of: the one that is being taken, and those"
        " before it.",
        enforced_by="odradek.node.router.client_quotas",
        validator=at_least(1),
        scope=BROKER,
    )
    quota_window_size_seconds: int = integer(
        1,
        "How many seconds each sample of the rate of a client quota covers.",
        enforced_by="odradek.node.router.client_quotas",
        validator=at_least(1),
        scope=BROKER,
    )
    controller_quota_window_num: int = integer(
        11,
        "With controller.quota.window.size.seconds: for how many seconds an unused quota of"
        " controller mutations is saved up.",
        enforced_by="odradek.cluster.controller.mutation_quotas",
        validator=at_least(1),
    )
    controller_quota_window_size_seconds: int = integer(
        1,
        "See controller.quota.window.num: the two are multiplied.",
        enforced_by="odradek.cluster.controller.mutation_quotas",
        validator=at_least(1),
    )
    connections_max_idle_ms: int = long(
        600_000,
        "How long a client's connection may be idle before it is closed.",
        enforced_by="odradek.node.wire.connection",
        validator=at_least(1),
        scope=BROKER,
    )
    fetch_max_bytes: int = integer(
        57_671_680,
        "The most bytes that one fetch returns, also if the client requests more. One batch is"
        " always returned, even if it is larger.",
        enforced_by="odradek.node.router.handlers.fetch",
        validator=at_least(1024),
        scope=BROKER,
    )
    max_connections_per_ip: int = integer(
        INT32_MAX,
        "How many connections a broker accepts from one address.",
        enforced_by="odradek.node.wire.limits",
        validator=at_least(0),
        scope=BROKER,
    )
    max_connections_per_ip_overrides: tuple[tuple[str, int], ...] = converted(
        string(
            "",
            "The max.connections.per.ip of single addresses, as in 127.0.0.1:200,10.0.0.1:50.",
            enforced_by="odradek.node.wire.limits",
            validator=satisfying(
                "Must be a list of address:number, as in 127.0.0.1:200,10.0.0.1:50",
                lambda text: (
                    not text or all(map(_LIMIT_OF_ADDRESS.fullmatch, str(text).split(",")))
                ),
            ),
            scope=BROKER,
        ),
        _limits_by_address,
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        1000,
        "How many incremental fetch sessions a broker keeps.",
        enforced_by="odradek.node.router.fetch_sessions",
        validator=at_least(0),
        scope=BROKER,
    )
    socket_request_max_bytes: int = integer(
        104_857_600,
        "The largest request. A connection that announces a larger one is closed. Half of"
        " arena.bytes is a limit too.",
        enforced_by="odradek.node.wire.connection",
        validator=at_least(1),
        scope=BROKER,
    )
    auto_leader_rebalance_enable: bool = boolean(
        True,
        "Whether the controller elects preferred leaders that are in sync again.",
        enforced_by="odradek.cluster.controller.controller",
    )
    broker_heartbeat_interval_ms: int = integer(
        200,
        "How often a broker sends a heartbeat to the controller.",
        enforced_by="odradek.cluster.controller.brokers",
        validator=at_least(1),
    )
    broker_session_timeout_ms: int = integer(
        1000,
        "How long a broker may send no heartbeat before it is fenced and loses leadership.",
        enforced_by="odradek.cluster.controller.brokers",
        validator=at_least(1),
    )
    cordoned_log_dirs: Strings = strings(
        "",
        "The log directories in which no new replicas are placed (KIP-1066); * stands for all, as"
        " while a broker is drained. The replicas in them stay until they are reassigned.",
        enforced_by="odradek.cluster.controller.state",
        validator=_LOG_DIRS,
        scope=ConfigScope.ONE_BROKER,
    )
    follower_replication_throttled_rate: int = long(
        INT64_MAX,
        "The bytes per second that a broker fetches for the replicas that are named by the"
        " follower.replication.throttled.replicas of their topics.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=at_least(0),
        scope=BROKER,
    )
    leader_imbalance_check_interval_seconds: int = long(
        300,
        "How often the controller checks whether preferred leaders can be elected.",
        enforced_by="odradek.cluster.controller.controller",
        validator=at_least(1),
    )
    leader_replication_throttled_rate: int = long(
        INT64_MAX,
        "The bytes per second that a broker sends to followers out of sync, of the replicas that"
        " are named by the leader.replication.throttled.replicas of their topics.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=at_least(0),
        scope=BROKER,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long(
        INT64_MAX,
        "The bytes per second that a broker copies for replicas that move to another log"
        " directory.",
        enforced_by="odradek.node.worker.replica_moves",
        validator=at_least(1),
        scope=BROKER,
    )
    replica_selector_class: str | None = string(
        None,
        "Which replica serves a consumer: the leader, or with Kafka's RackAwareReplicaSelector an"
        " in-sync replica in the rack that the consumer names as its client.rack.",
        enforced_by="odradek.node.router.handlers.fetch",
        validator=one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
        scope=BROKER,
    )
    group_initial_rebalance_delay_ms: int = integer(
        3000,
        "How long an empty classic group waits for more members after the first has joined.",
        enforced_by="odradek.coordinator.group.classic.group",
        validator=at_least(0),
    )
    group_lag_metrics: str = string(
        "topic",
        "For what the metrics show the lag of groups that have committed offsets: for each group"
        " and topic, for each partition, or not at all.",
        enforced_by="odradek.node.router.group_lag_metrics",
        validator=one_of("none", "topic", "partition"),
    )
    metrics_series_max: int = integer(
        2_000,
        "How many series each process names of a metric whose number grows with topics, partitions,"
        " groups or users. The others are one series, with _other as their labels.",
        enforced_by="odradek.node.metrics.registry",
        validator=at_least(1),
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000,
        "The longest session timeout that a member of a classic group may request.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
    )
    group_max_size: int = integer(
        INT32_MAX,
        "How many members a classic group may have.",
        enforced_by="odradek.coordinator.group.classic.group",
        validator=at_least(1),
    )
    group_min_session_timeout_ms: int = integer(
        6000,
        "The shortest session timeout that a member of a classic group may request.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
    )
    offset_metadata_max_bytes: int = integer(
        4096,
        "The longest metadata that a client may commit with an offset, in bytes.",
        enforced_by="odradek.coordinator.group.offsets.committed_offsets",
        validator=at_least(0),
    )
    offsets_retention_check_interval_ms: int = long(
        600_000,
        "How often the coordinator looks for committed offsets that have expired.",
        enforced_by="odradek.coordinator.group.shard",
        validator=at_least(1),
    )
    offsets_retention_minutes: int = integer(
        10_080,
        "How long the offsets of a group without members are kept.",
        enforced_by="odradek.coordinator.group.administration.group_cleanup",
        validator=at_least(1),
    )
    offsets_topic_num_partitions: int = _partition_count(CONSUMER_OFFSETS, "group")
    offsets_topic_replication_factor: int = _replication_factor(CONSUMER_OFFSETS, "group")
    internal_topics_replication_adaptive: bool = boolean(
        False,
        "Whether internal topics are created with fewer replicas than configured while there are"
        " fewer brokers, and get the others when brokers join. Without it they are created with"
        " the configured replication factor or not at all. The dev profile and a single node"
        " have it.",
        enforced_by="odradek.cluster.controller.controller",
        scope=ConfigScope.CLUSTER,
    )
    offsets_topic_segment_bytes: int = _segment_bytes(CONSUMER_OFFSETS, "group", 16_777_216)
    workers: int | None = integer(
        None,
        "How many processes own the partitions of a broker; at most one for each store. A change"
        " while it runs moves stores between them at once. Their data stay where they are.",
        enforced_by="odradek.node.controller.node_readiness",
        validator=between(1, 64),
        scope=BROKER,
    )
    durability: str = string(
        "interval",
        "When an append is acknowledged: 'interval' when it is in the page cache, which is flushed"
        " within a second; 'commit' when it is flushed to the disk.",
        enforced_by="odradek.node.worker.hosted_partitions",
        validator=one_of("interval", "commit"),
        scope=BROKER,
    )
    log_retention_check_interval_ms: int = long(
        300_000,
        "How often retention is applied to the logs.",
        enforced_by="odradek.storage.maintenance",
        validator=at_least(1),
        scope=BROKER,
    )
    producer_id_expiration_ms: int = integer(
        86_400_000,
        "How long a producer's sequence numbers are kept after its last batch.",
        enforced_by="odradek.storage.store",
        validator=at_least(1),
        scope=BROKER,
    )
    replica_lag_time_max_ms: int = long(
        30_000,
        "How long a follower may lag behind before it leaves the in-sync replicas.",
        enforced_by="odradek.node.worker.process",
        validator=at_least(1),
        scope=BROKER,
    )
    advertised_listeners: Strings | None = strings(
        None,
        "The addresses that clients get. If empty: the one at which they reached the broker.",
        enforced_by="odradek.node.listener_configs",
        validator=parsed_by(parse_addresses),
        scope=PER_BROKER,
    )
    broker_rack: str | None = string(
        None,
        "The rack or zone of this broker, shown to clients.",
        enforced_by="odradek.node.controller.bootstrap",
        scope=READ_ONLY,
    )
    listeners: Strings | None = strings(
        None,
        "The addresses on which the broker listens. A change while it runs opens and closes"
        " listeners at once; the connections of a listener that is removed are closed.",
        enforced_by="odradek.node.listener_configs",
        validator=parsed_by(parse_addresses),
        scope=PER_BROKER,
    )
    listener_security_protocol_map: str = string(
        DEFAULT_PROTOCOLS,
        "The security protocol of each listener, as in NAME:SSL. That of an open listener cannot"
        " be changed: remove it first, or add another one.",
        enforced_by="odradek.node.listener_configs",
        validator=parsed_by(parse_protocol_map),
        scope=PER_BROKER,
    )
    log_dirs: Strings | None = strings(
        None,
        "The log directories of the broker. The first one is its data folder.",
        enforced_by="odradek.node.config",
        scope=READ_ONLY,
    )
    log_dir: Strings | None = strings(
        None,
        "Another name of log.dirs.",
        enforced_by=BY_CONSTRUCTION,
        scope=READ_ONLY,
    )
    broker_id: int = integer(
        -1,
        "Another name of node.id.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(-1),
        scope=READ_ONLY,
    )
    node_id: int = integer(
        0,
        "The broker's number in the cluster.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(0),
        scope=READ_ONLY,
    )
    transaction_max_timeout_ms: int = integer(
        900_000,
        "The longest transaction.timeout.ms that a producer may request.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
    )
    transaction_partition_verification_enable: bool = boolean(
        True,
        "Whether the broker verifies with the transaction coordinator that a partition is part of a"
        " transaction, before it accepts the first batch of an older client.",
        enforced_by="odradek.node.router.handlers.produce",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        3_600_000,
        "How often the coordinator looks for transactional ids that have expired.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
    )
    transaction_state_log_min_isr: int = integer(
        2,
        "The min.insync.replicas that __transaction_state is created with.",
        enforced_by="odradek.node.router.shards.transaction_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    )
    transaction_state_log_num_partitions: int = _partition_count(TRANSACTION_STATE, "transaction")
    transaction_state_log_replication_factor: int = _replication_factor(
        TRANSACTION_STATE, "transaction"
    )
    transaction_state_log_segment_bytes: int = _segment_bytes(
        TRANSACTION_STATE, "transaction", 16_777_216
    )
    transaction_watchdog_abort_enable: bool = boolean(
        False,
        "Whether the broker aborts hanging transactions in partitions it leads: those that are open"
        " there, without a batch for transaction.max.timeout.ms and transaction.watchdog.margin.ms"
        " together, and unknown to all coordinators. Otherwise they are logged and counted.",
        enforced_by="odradek.node.router.transactions.watchdog",
    )
    transaction_watchdog_interval_ms: int = integer(
        60_000,
        "How often to look for hanging transactions. It takes two checks to be sure of one.",
        enforced_by="odradek.node.router.transactions.watchdog",
        validator=at_least(100),
    )
    transaction_watchdog_margin_ms: int = integer(
        300_000,
        "How much longer than transaction.max.timeout.ms a transaction must be idle to count as"
        " hanging.",
        enforced_by="odradek.node.router.transactions.watchdog",
        validator=at_least(0),
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000,
        "How long a transactional id is kept after its last transaction.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
    )
    telemetry_max_bytes: int = integer(
        1_048_576,
        "The largest metrics, as compressed, that a client may push in one request (KIP-714).",
        enforced_by="odradek.node.router.telemetry.receiver",
        validator=at_least(1),
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = integer(
        500,
        "After how many updates of the state of a share partition a snapshot is written.",
        enforced_by="odradek.coordinator.share.shard",
        validator=between(0, 500),
    )
    share_coordinator_state_topic_min_isr: int = short(
        2,
        "The min.insync.replicas that __share_group_state is created with.",
        enforced_by="odradek.node.router.shards.share_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    )
    share_coordinator_state_topic_num_partitions: int = _partition_count(SHARE_GROUP_STATE, "share")
    share_coordinator_state_topic_replication_factor: int = _replication_factor(
        SHARE_GROUP_STATE, "share"
    )
    share_coordinator_state_topic_segment_bytes: int = _segment_bytes(
        SHARE_GROUP_STATE, "share", 104_857_600
    )
    group_share_max_share_sessions: int = integer(
        2_000,
        "How many share sessions a broker keeps; one more is refused.",
        enforced_by="odradek.node.router.share.sessions",
        validator=at_least(1),
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = boolean(
        False,
        "Whether a group's dead-letter topic is created when it is first needed.",
        enforced_by="odradek.node.router.share.dead_letter_queue",
    )
    errors_deadletterqueue_topic_name_prefix: str = string(
        "dlq.",
        "The prefix of the names of dead-letter topics; empty for any name.",
        enforced_by="odradek.node.router.share.dead_letter_queue",
    )
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()
    """Of consumer groups that set nothing themselves; the others as well."""
    streams: StreamsGroupSettings = StreamsGroupSettings()
    share: ShareGroupSettings = ShareGroupSettings()
    policies: GroupPolicySettings = GroupPolicySettings()
    authorizer: AuthorizerSettings = AuthorizerSettings()
    delegation_tokens: DelegationTokenSettings = DelegationTokenSettings()
    group_bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Between what a group may set a key of its own, both included."""

"""The settings of a topic: Kafka's keys, with its names, defaults and bounds (4.3).

A topic that does not set a key has the value of the broker's key that `broker` names. The throttled
replicas, which name a topic's own partitions, and the permission to hold dead letters have none.
"""

import re
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    BY_CONSTRUCTION,
    INT64_MAX,
    ConfigScope,
    ConfigValue,
    at_least,
    between,
    invalid_value,
    one_of,
    satisfying,
)
from odradek.cluster.metadata.config_schema import (
    CoarserKey,
    Strings,
    TopicDefault,
    boolean,
    double,
    integer,
    long,
    settings,
    string,
    strings,
)
from odradek.cluster.metadata.image import ConfigResourceType

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

CLEANUP_POLICY: Final = one_of("compact", "delete")
COMPRESSION_TYPE: Final = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPE: Final = one_of("CreateTime", "LogAppendTime")
GZIP_LEVEL: Final = satisfying(
    "Value must be between 1 and 9 or equal to -1", lambda value: value in (-1, *range(1, 10))
)

_REPLICAS: Final = re.compile(r"\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*|")


def _check_replicas(name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if _REPLICAS.fullmatch(",".join(value)) is None:
        raise invalid_value(
            name,
            value,
            f"{name} must be the literal '*' or a list of replicas in the following format:"
            " [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


@settings(ConfigResourceType.TOPIC)
class TopicSettings:
    """Every key of a topic that has an effect. Durations in ms; -1 stands for "no limit" where a
    key allows it."""

    cleanup_policy: Strings = strings(
        "delete",
        "What happens to old records: 'delete' drops them by age and size, 'compact' keeps the"
        " latest of each key; both may be named, and with neither everything is kept.",
        enforced_by="odradek.storage.retention",
        validator=CLEANUP_POLICY,
        broker=TopicDefault("log.cleanup.policy"),
    )
    compression_type: str = string(
        "producer",
        "The codec in which batches are stored; 'producer' keeps what the producer chose.",
        enforced_by="odradek.storage.append",
        validator=COMPRESSION_TYPE,
        broker=TopicDefault("compression.type"),
    )
    compression_gzip_level: int = integer(
        -1,
        "The gzip level used when compression.type is gzip and batches must be recompressed.",
        enforced_by="odradek.storage.validation",
        validator=GZIP_LEVEL,
        broker=TopicDefault("compression.gzip.level"),
    )
    compression_lz4_level: int = integer(
        9,
        "The lz4 level used when compression.type is lz4 and batches must be recompressed.",
        enforced_by="odradek.storage.validation",
        validator=between(1, 17),
        broker=TopicDefault("compression.lz4.level"),
    )
    compression_zstd_level: int = integer(
        3,
        "The zstd level used when compression.type is zstd and batches must be recompressed.",
        enforced_by="odradek.storage.validation",
        validator=between(-131_072, 22),
        broker=TopicDefault("compression.zstd.level"),
    )
    delete_retention_ms: int = long(
        86_400_000,
        "How long compaction keeps a tombstone, so that readers from the start can see it.",
        enforced_by="odradek.storage.compaction",
        validator=at_least(0),
        broker=TopicDefault("log.cleaner.delete.retention.ms"),
    )
    errors_deadletterqueue_group_enable: bool = boolean(
        False,
        "Whether groups may make this topic their dead-letter topic (KIP-1191).",
        enforced_by="odradek.node.router.share.dead_letter_queue",
    )
    file_delete_delay_ms: int = long(
        60_000,
        "How long a deleted file is left to those who still read it; here it stays until the"
        " last of them lets go of it, however long that takes.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(0),
        broker=TopicDefault("log.segment.delete.delay.ms"),
    )
    flush_messages: int = long(
        INT64_MAX,
        "After how many records of a partition the log is forced to the disk; 1 means every"
        " append before it is acknowledged.",
        enforced_by="odradek.storage.durability",
        validator=at_least(1),
        broker=TopicDefault("log.flush.interval.messages"),
    )
    flush_ms: int = long(
        INT64_MAX,
        "After how long at most an appended record is forced to the disk.",
        enforced_by="odradek.storage.durability",
        validator=at_least(0),
        broker=TopicDefault("log.flush.interval.ms"),
    )
    follower_replication_throttled_replicas: Strings = strings(
        "",
        "The replicas that are throttled as followers, by follower.replication.throttled.rate.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=_check_replicas,
    )
    index_interval_bytes: int = integer(
        4096,
        "How many bytes may lie between two index entries; here every batch has an entry, which"
        " is as fine as any value asks for.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(0),
        broker=TopicDefault("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: Strings = strings(
        "",
        "The replicas that are throttled as leaders, by leader.replication.throttled.rate.",
        enforced_by="odradek.cluster.metadata.throttles",
        validator=_check_replicas,
    )
    max_compaction_lag_ms: int = long(
        INT64_MAX,
        "How long a record may stay before compaction has to consider it.",
        enforced_by="odradek.storage.compaction",
        validator=at_least(1),
        broker=TopicDefault("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = integer(
        1_048_588,
        "The largest record batch, after compression, that a producer may append.",
        enforced_by="odradek.storage.validation",
        validator=at_least(0),
        broker=TopicDefault("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = long(
        HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock; only CreateTime.",
        enforced_by="odradek.storage.validation",
        validator=at_least(0),
        broker=TopicDefault("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = long(
        INT64_MAX,
        "How far a record's timestamp may lie behind the broker's clock; only CreateTime.",
        enforced_by="odradek.storage.validation",
        validator=at_least(0),
        broker=TopicDefault("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = string(
        "CreateTime",
        "Whose clock stamps the records: the producer's (CreateTime) or the broker's.",
        enforced_by="odradek.storage.validation",
        validator=TIMESTAMP_TYPE,
        broker=TopicDefault("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "The part of a compacted log that must be uncleaned before it is worth a cleaning.",
        enforced_by="odradek.storage.compaction",
        validator=between(0, 1),
        broker=TopicDefault("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = long(
        0,
        "How long a record is safe from compaction after it was written.",
        enforced_by="odradek.storage.compaction",
        validator=at_least(0),
        broker=TopicDefault("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = integer(
        1,
        "How many replicas must be in sync for an append with acks=all to be accepted; a"
        " partition with fewer replicas needs all it has.",
        enforced_by="odradek.cluster.replication.partition",
        validator=at_least(1),
        broker=TopicDefault("min.insync.replicas", ConfigScope.CLUSTER),
    )
    preallocate: bool = boolean(
        False,
        "Whether a segment's file is sized in advance; the store's files are mapped at full"
        " size from the start and take only the blocks they use.",
        enforced_by=BY_CONSTRUCTION,
        broker=TopicDefault("log.preallocate"),
    )
    retention_bytes: int = long(
        -1,
        "How large a partition grows before 'delete' drops its oldest records; -1: no limit.",
        enforced_by="odradek.storage.retention",
        validator=at_least(-1),
        broker=TopicDefault("log.retention.bytes"),
    )
    retention_ms: int = long(
        7 * 24 * HOUR_MS,
        "How old records may become before 'delete' drops them; -1: they stay.",
        enforced_by="odradek.storage.retention",
        validator=at_least(-1),
        broker=TopicDefault(
            "log.retention.ms",
            coarser=(
                CoarserKey("log.retention.minutes", MINUTE_MS, None, -1),
                CoarserKey("log.retention.hours", HOUR_MS, 168, -1),
            ),
        ),
    )
    segment_bytes: int = integer(
        1 << 30,
        "How large a segment may become before a new one is begun; retention and compaction"
        " work on whole segments.",
        enforced_by="odradek.storage.store",
        validator=at_least(1 << 20),
        broker=TopicDefault("log.segment.bytes"),
    )
    segment_index_bytes: int = integer(
        10_485_760,
        "How large a segment's index may become; here the index is part of the segment and"
        " never fills up before it.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(4),
        broker=TopicDefault("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = long(
        0,
        "The most by which segment.ms is shortened at random, so that not all segments are"
        " begun at once.",
        enforced_by="odradek.storage.segment_roll",
        validator=at_least(0),
        broker=TopicDefault(
            "log.roll.jitter.ms", coarser=(CoarserKey("log.roll.jitter.hours", HOUR_MS, 0, 0),)
        ),
    )
    segment_ms: int = long(
        7 * 24 * HOUR_MS,
        "How old a segment may become before a new one is begun, full or not.",
        enforced_by="odradek.storage.segment_roll",
        validator=at_least(1),
        broker=TopicDefault(
            "log.roll.ms", coarser=(CoarserKey("log.roll.hours", HOUR_MS, 168, 1),)
        ),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Whether a replica that is not in sync may become leader when no other is left, which"
        " may lose records.",
        enforced_by="odradek.cluster.controller.partition_changes",
        broker=TopicDefault("unclean.leader.election.enable", ConfigScope.CLUSTER),
    )

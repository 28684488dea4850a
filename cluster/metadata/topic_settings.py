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

    archive_group: str = string(
        "",
        "The consumer group of an archive: retention and compaction keep the records that it has"
        " not committed yet, up to odradek.archive.max.ms and odradek.archive.max.bytes. Empty:"
        " they wait for no group.",
        name="odradek.archive.group",
        enforced_by="odradek.storage.partition_log",
    )
    archive_max_bytes: int = long(
        -1,
        "How large a partition may be before its oldest records are deleted although the group of"
        " odradek.archive.group has not committed them; -1: no limit. Nothing is deleted that"
        " retention keeps.",
        name="odradek.archive.max.bytes",
        enforced_by="odradek.storage.archive_gate",
        validator=at_least(-1),
    )
    archive_max_ms: int = long(
        30 * 24 * HOUR_MS,
        "How old records may be before they are deleted although the group of odradek.archive.group"
        " has not committed them; -1: no limit. Nothing is deleted that retention keeps.",
        name="odradek.archive.max.ms",
        enforced_by="odradek.storage.archive_gate",
        validator=at_least(-1),
    )
    cleanup_policy: Strings = strings(
        "delete",
        "What happens to old records: 'delete' deletes them by age and size, 'compact' keeps the"
        " last record of each key. Both may be set. If neither is set, all records are kept.",
        enforced_by="odradek.storage.retention",
        validator=one_of("compact", "delete"),
        broker=TopicDefault("log.cleanup.policy"),
    )
    compression_type: str = string(
        "producer",
        "The codec in which batches are stored; 'producer' keeps the producer's codec.",
        enforced_by="odradek.storage.client_batches",
        validator=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
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
        "How long compaction keeps a tombstone, so that consumers that read from the start see it.",
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
        "How long a deleted file stays on the disk for its readers. Here it stays until the last"
        " reader closes it.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(0),
        broker=TopicDefault("log.segment.delete.delay.ms"),
    )
    flush_messages: int = long(
        INT64_MAX,
        "After how many records of a partition the log is flushed to the disk; 1: each append is"
        " flushed before it is acknowledged.",
        enforced_by="odradek.storage.durability",
        validator=at_least(1),
        broker=TopicDefault("log.flush.interval.messages"),
    )
    flush_ms: int = long(
        INT64_MAX,
        "The longest time until an appended record is flushed to the disk.",
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
        "How many bytes may be between two index entries. Here every batch has an index entry.",
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
        "The longest time that a record may remain without being compacted.",
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
        "How far a record's timestamp may be ahead of the broker's clock, with CreateTime.",
        enforced_by="odradek.storage.client_batches",
        validator=at_least(0),
        broker=TopicDefault("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = long(
        INT64_MAX,
        "How far a record's timestamp may be behind the broker's clock, with CreateTime.",
        enforced_by="odradek.storage.client_batches",
        validator=at_least(0),
        broker=TopicDefault("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = string(
        "CreateTime",
        "The timestamp of a record: the producer's (CreateTime) or the time of the append.",
        enforced_by="odradek.storage.client_batches",
        validator=one_of("CreateTime", "LogAppendTime"),
        broker=TopicDefault("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        "The share of a compacted log that must be dirty before the log is cleaned.",
        enforced_by="odradek.storage.compaction",
        validator=between(0, 1),
        broker=TopicDefault("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = long(
        0,
        "The shortest time that a record remains without being compacted.",
        enforced_by="odradek.storage.compaction",
        validator=at_least(0),
        broker=TopicDefault("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = integer(
        1,
        "How many replicas must be in sync for an append with acks=all to be accepted. In a"
        " partition with fewer replicas all of them must be.",
        enforced_by="odradek.cluster.replication.partition",
        validator=at_least(1),
        broker=TopicDefault("min.insync.replicas", ConfigScope.CLUSTER),
    )
    preallocate: bool = boolean(
        False,
        "Whether a segment's file is preallocated. Here files are mapped at full size from the"
        " start and use only the blocks that have data.",
        enforced_by=BY_CONSTRUCTION,
        broker=TopicDefault("log.preallocate"),
    )
    retention_bytes: int = long(
        -1,
        "How large a partition may be before 'delete' deletes its oldest records; -1: no limit.",
        enforced_by="odradek.storage.retention",
        validator=at_least(-1),
        broker=TopicDefault("log.retention.bytes"),
    )
    retention_ms: int = long(
        7 * 24 * HOUR_MS,
        "How old records may be before 'delete' deletes them; -1: no limit.",
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
        "How large a segment may be before a new one is rolled. Retention and compaction work on"
        " whole segments.",
        enforced_by="odradek.storage.store",
        validator=at_least(1 << 20),
        broker=TopicDefault("log.segment.bytes"),
    )
    segment_index_bytes: int = integer(
        10_485_760,
        "How large a segment's index may be. Here the index is part of the segment.",
        enforced_by=BY_CONSTRUCTION,
        validator=at_least(4),
        broker=TopicDefault("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = long(
        0,
        "The most by which segment.ms is shortened at random, so that not all segments are rolled"
        " at the same time.",
        enforced_by="odradek.storage.segment_roll",
        validator=at_least(0),
        broker=TopicDefault(
            "log.roll.jitter.ms", coarser=(CoarserKey("log.roll.jitter.hours", HOUR_MS, 0, 0),)
        ),
    )
    segment_ms: int = long(
        7 * 24 * HOUR_MS,
        "How old a segment may be before a new one is rolled, even if it is not full.",
        enforced_by="odradek.storage.segment_roll",
        validator=at_least(1),
        broker=TopicDefault(
            "log.roll.ms", coarser=(CoarserKey("log.roll.hours", HOUR_MS, 168, 1),)
        ),
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        "Whether a replica that is not in sync may become leader if no replica in sync can. Records"
        " may be lost.",
        enforced_by="odradek.cluster.controller.partition_changes",
        broker=TopicDefault("unclean.leader.election.enable", ConfigScope.CLUSTER),
    )

"""The keys of a topic's configuration, with Kafka's names, defaults and limits (4.3).

What is not here is refused as unknown, see `config_definitions`: the keys of tiered storage come
with that. Each key's default is that of its synonyms in the broker's table, which a test holds to
be the same; only the throttled replicas, which name a topic's own partitions, and the leave to hold
dead letters have none there.
"""

import re
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    BY_CONSTRUCTION,
    INT64_MAX,
    ConfigSynonym,
    ConfigType,
    ConfigValue,
    Definitions,
    Importance,
    Validator,
    at_least,
    between,
    define,
    definitions_by_name,
    list_of,
    number_where,
    one_of,
)

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

CLEANUP_POLICY: Final = list_of("delete", "compact")
COMPRESSION_TYPE: Final = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPE: Final = one_of("CreateTime", "LogAppendTime")
GZIP_LEVEL: Final = number_where(
    "from 1 to 9, or -1 for the codec's own default",
    lambda value: value == -1 or 1 <= value <= 9,
)
LZ4_LEVEL: Final = between(1, 17)
ZSTD_LEVEL: Final = between(-131_072, 22)
SEGMENT_BYTES: Final = at_least(1 << 20)

_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+\Z")


def _is_replica_list(value: ConfigValue) -> bool:
    if not isinstance(value, tuple):
        return False
    return value == ("*",) or all(_REPLICA.match(replica) is not None for replica in value)


THROTTLED_REPLICAS: Final = Validator(
    "'*' for all replicas, or a comma-separated list of partition:broker", _is_replica_list
)

TOPIC_CONFIGS: Final[Definitions] = definitions_by_name(
    [
        define(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "What happens to old records: 'delete' drops them by age and size, 'compact' keeps the"
            " latest of each key; both may be named, and with neither everything is kept.",
            enforced_by="odradek.storage.retention",
            validator=CLEANUP_POLICY,
            synonyms=("log.cleanup.policy",),
        ),
        define(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "The codec in which batches are stored; 'producer' keeps what the producer chose.",
            enforced_by="odradek.storage.append",
            validator=COMPRESSION_TYPE,
            synonyms=("compression.type",),
        ),
        define(
            "compression.gzip.level",
            ConfigType.INT,
            -1,
            "The gzip level used when compression.type is gzip and batches must be recompressed.",
            enforced_by="odradek.storage.validation",
            validator=GZIP_LEVEL,
            synonyms=("compression.gzip.level",),
        ),
        define(
            "compression.lz4.level",
            ConfigType.INT,
            9,
            "The lz4 level used when compression.type is lz4 and batches must be recompressed.",
            enforced_by="odradek.storage.validation",
            validator=LZ4_LEVEL,
            synonyms=("compression.lz4.level",),
        ),
        define(
            "compression.zstd.level",
            ConfigType.INT,
            3,
            "The zstd level used when compression.type is zstd and batches must be recompressed.",
            enforced_by="odradek.storage.validation",
            validator=ZSTD_LEVEL,
            synonyms=("compression.zstd.level",),
        ),
        define(
            "delete.retention.ms",
            ConfigType.LONG,
            86_400_000,
            "How long compaction keeps a tombstone, so that readers from the start can see it.",
            enforced_by="odradek.storage.compaction",
            validator=at_least(0),
            synonyms=("log.cleaner.delete.retention.ms",),
        ),
        define(
            "errors.deadletterqueue.group.enable",
            ConfigType.BOOLEAN,
            "false",
            "Whether groups may make this topic their dead-letter topic (KIP-1191).",
            enforced_by="odradek.node.router.share.dead_letter_queue",
        ),
        define(
            "file.delete.delay.ms",
            ConfigType.LONG,
            60_000,
            "How long a deleted file is left to those who still read it; here it stays until the"
            " last of them lets go of it, however long that takes.",
            enforced_by=BY_CONSTRUCTION,
            validator=at_least(0),
            synonyms=("log.segment.delete.delay.ms",),
        ),
        define(
            "flush.messages",
            ConfigType.LONG,
            INT64_MAX,
            "After how many records of a partition the log is forced to the disk; 1 means every"
            " append before it is acknowledged.",
            enforced_by="odradek.storage.durability",
            validator=at_least(1),
            synonyms=("log.flush.interval.messages",),
        ),
        define(
            "flush.ms",
            ConfigType.LONG,
            INT64_MAX,
            "After how long at most an appended record is forced to the disk.",
            enforced_by="odradek.storage.durability",
            validator=at_least(0),
            synonyms=("log.flush.interval.ms",),
        ),
        define(
            "follower.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "The replicas that are throttled as followers, by follower.replication.throttled.rate.",
            enforced_by="odradek.cluster.metadata.throttles",
            validator=THROTTLED_REPLICAS,
        ),
        define(
            "index.interval.bytes",
            ConfigType.INT,
            4096,
            "How many bytes may lie between two index entries; here every batch has an entry, which"
            " is as fine as any value asks for.",
            enforced_by=BY_CONSTRUCTION,
            validator=at_least(0),
            importance=Importance.LOW,
            synonyms=("log.index.interval.bytes",),
        ),
        define(
            "leader.replication.throttled.replicas",
            ConfigType.LIST,
            "",
            "The replicas that are throttled as leaders, by leader.replication.throttled.rate.",
            enforced_by="odradek.cluster.metadata.throttles",
            validator=THROTTLED_REPLICAS,
        ),
        define(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            INT64_MAX,
            "How long a record may stay before compaction has to consider it.",
            enforced_by="odradek.storage.compaction",
            validator=at_least(1),
            synonyms=("log.cleaner.max.compaction.lag.ms",),
        ),
        define(
            "max.message.bytes",
            ConfigType.INT,
            1_048_588,
            "The largest record batch, after compression, that a producer may append.",
            enforced_by="odradek.storage.validation",
            validator=at_least(0),
            synonyms=("message.max.bytes",),
        ),
        define(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            HOUR_MS,
            "How far a record's timestamp may lie ahead of the broker's clock; only CreateTime.",
            enforced_by="odradek.storage.validation",
            validator=at_least(0),
            synonyms=("log.message.timestamp.after.max.ms",),
        ),
        define(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            INT64_MAX,
            "How far a record's timestamp may lie behind the broker's clock; only CreateTime.",
            enforced_by="odradek.storage.validation",
            validator=at_least(0),
            synonyms=("log.message.timestamp.before.max.ms",),
        ),
        define(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "Whose clock stamps the records: the producer's (CreateTime) or the broker's.",
            enforced_by="odradek.storage.validation",
            validator=TIMESTAMP_TYPE,
            synonyms=("log.message.timestamp.type",),
        ),
        define(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            0.5,
            "The part of a compacted log that must be uncleaned before it is worth a cleaning.",
            enforced_by="odradek.storage.compaction",
            validator=between(0, 1),
            synonyms=("log.cleaner.min.cleanable.ratio",),
        ),
        define(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            0,
            "How long a record is safe from compaction after it was written.",
            enforced_by="odradek.storage.compaction",
            validator=at_least(0),
            synonyms=("log.cleaner.min.compaction.lag.ms",),
        ),
        define(
            "min.insync.replicas",
            ConfigType.INT,
            1,
            "How many replicas must be in sync for an append with acks=all to be accepted; a"
            " partition with fewer replicas needs all it has.",
            enforced_by="odradek.cluster.replication.partition",
            validator=at_least(1),
            synonyms=("min.insync.replicas",),
        ),
        define(
            "preallocate",
            ConfigType.BOOLEAN,
            "false",
            "Whether a segment's file is sized in advance; the store's files are mapped at full"
            " size from the start and take only the blocks they use.",
            enforced_by=BY_CONSTRUCTION,
            importance=Importance.LOW,
            synonyms=("log.preallocate",),
        ),
        define(
            "retention.bytes",
            ConfigType.LONG,
            -1,
            "How large a partition grows before 'delete' drops its oldest records; -1: no limit.",
            enforced_by="odradek.storage.retention",
            validator=at_least(-1),
            synonyms=("log.retention.bytes",),
        ),
        define(
            "retention.ms",
            ConfigType.LONG,
            7 * 24 * HOUR_MS,
            "How old records may become before 'delete' drops them; -1: they stay.",
            enforced_by="odradek.storage.retention",
            validator=at_least(-1),
            synonyms=(
                "log.retention.ms",
                ConfigSynonym("log.retention.minutes", MINUTE_MS),
                ConfigSynonym("log.retention.hours", HOUR_MS),
            ),
        ),
        define(
            "segment.bytes",
            ConfigType.INT,
            1 << 30,
            "How large a segment may become before a new one is begun; retention and compaction"
            " work on whole segments.",
            enforced_by="odradek.storage.store",
            validator=SEGMENT_BYTES,
            synonyms=("log.segment.bytes",),
        ),
        define(
            "segment.index.bytes",
            ConfigType.INT,
            10_485_760,
            "How large a segment's index may become; here the index is part of the segment and"
            " never fills up before it.",
            enforced_by=BY_CONSTRUCTION,
            validator=at_least(4),
            importance=Importance.LOW,
            synonyms=("log.index.size.max.bytes",),
        ),
        define(
            "segment.jitter.ms",
            ConfigType.LONG,
            0,
            "The most by which segment.ms is shortened at random, so that not all segments are"
            " begun at once.",
            enforced_by="odradek.storage.segment_roll",
            validator=at_least(0),
            synonyms=("log.roll.jitter.ms", ConfigSynonym("log.roll.jitter.hours", HOUR_MS)),
        ),
        define(
            "segment.ms",
            ConfigType.LONG,
            7 * 24 * HOUR_MS,
            "How old a segment may become before a new one is begun, full or not.",
            enforced_by="odradek.storage.segment_roll",
            validator=at_least(1),
            synonyms=("log.roll.ms", ConfigSynonym("log.roll.hours", HOUR_MS)),
        ),
        define(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            "false",
            "Whether a replica that is not in sync may become leader when no other is left, which"
            " may lose records.",
            enforced_by="odradek.cluster.controller.partition_changes",
            importance=Importance.HIGH,
            synonyms=("unclean.leader.election.enable",),
        ),
    ]
)

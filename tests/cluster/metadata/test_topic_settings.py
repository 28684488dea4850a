"""The topic keys compared with Kafka's, and their limits."""

from typing import Final

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, TOPIC_CONFIGS

# What DescribeConfigs of a Kafka 4.3.1 answers for a topic that nobody has configured.
KAFKA: Final = {
    "cleanup.policy": ("LIST", "delete"),
    "compression.type": ("STRING", "producer"),
    "errors.deadletterqueue.group.enable": ("BOOLEAN", "false"),
    "compression.gzip.level": ("INT", "-1"),
    "compression.lz4.level": ("INT", "9"),
    "compression.zstd.level": ("INT", "3"),
    "delete.retention.ms": ("LONG", "86400000"),
    "file.delete.delay.ms": ("LONG", "60000"),
    "flush.messages": ("LONG", "9223372036854775807"),
    "flush.ms": ("LONG", "9223372036854775807"),
    "follower.replication.throttled.replicas": ("LIST", ""),
    "index.interval.bytes": ("INT", "4096"),
    "leader.replication.throttled.replicas": ("LIST", ""),
    "max.compaction.lag.ms": ("LONG", "9223372036854775807"),
    "max.message.bytes": ("INT", "1048588"),
    "message.timestamp.after.max.ms": ("LONG", "3600000"),
    "message.timestamp.before.max.ms": ("LONG", "9223372036854775807"),
    "message.timestamp.type": ("STRING", "CreateTime"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5"),
    "min.compaction.lag.ms": ("LONG", "0"),
    "min.insync.replicas": ("INT", "1"),
    "preallocate": ("BOOLEAN", "false"),
    "retention.bytes": ("LONG", "-1"),
    "retention.ms": ("LONG", "604800000"),
    "segment.bytes": ("INT", "1073741824"),
    "segment.index.bytes": ("INT", "10485760"),
    "segment.jitter.ms": ("LONG", "0"),
    "segment.ms": ("LONG", "604800000"),
    "local.retention.bytes": ("LONG", "-2"),
    "local.retention.ms": ("LONG", "-2"),
    "remote.log.copy.disable": ("BOOLEAN", "false"),
    "remote.log.delete.on.disable": ("BOOLEAN", "false"),
    "remote.storage.enable": ("BOOLEAN", "false"),
    "unclean.leader.election.enable": ("BOOLEAN", "false"),
}
GATE: Final = {
    "odradek.archive.group": ("STRING", ""),
    "odradek.archive.max.bytes": ("LONG", "-1"),
    "odradek.archive.max.ms": ("LONG", "2592000000"),
}
"""The keys that only Odradek has."""
OWN_ONLY: Final = {
    *GATE,
    "errors.deadletterqueue.group.enable",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
}
"""Keys that speak of a topic's own partitions or archive: a broker has no default for them."""


def test_types_and_defaults_are_kafkas() -> None:
    ours = {
        name: (definition.type.name, definition.default)
        for name, definition in TOPIC_CONFIGS.items()
    }
    assert ours == KAFKA | GATE


def test_every_key_has_its_default_from_a_key_of_the_broker() -> None:
    for definition in TOPIC_CONFIGS.values():
        if definition.name.startswith("local.retention."):
            # Without effect; a broker's key has the default nevertheless.
            assert [each.name for each in definition.synonyms] == [f"log.{definition.name}"]
            continue
        if definition.name in OWN_ONLY or not definition.has_effect:
            assert not definition.synonyms
            continue
        assert definition.synonyms, definition.name
        last = definition.synonyms[-1]
        broker_default = BROKER_CONFIGS[last.name].default
        assert broker_default is not None
        assert definition.default is not None
        if last.factor == 1:
            assert broker_default == definition.default, definition.name
        else:
            assert int(broker_default) * last.factor == int(definition.default), definition.name


# Kafka 4.3.1 was asked for each of these, but for the throttled replicas: those are KIP-73's.
@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("cleanup.policy", ["", "delete,delete", "delete, compact"], ["foo", "delete,,compact"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", "-2"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18"]),
        ("compression.type", ["uncompressed", "zstd", "producer"], ["LZ4", "none", ""]),
        ("compression.zstd.level", ["-131072", "22"], ["-131073", "23"]),
        ("delete.retention.ms", ["0"], ["-1"]),
        ("file.delete.delay.ms", ["0"], ["-1"]),
        ("flush.messages", ["1"], ["0"]),
        ("flush.ms", ["0"], ["-1"]),
        (
            "follower.replication.throttled.replicas",
            ["", "*", "0:1", "0:1, 12:3"],
            ["0", "0:1,*", "*,0:1", "a:b", "0:1:2", "0:-1"],
        ),
        ("leader.replication.throttled.replicas", ["*", "0:1,1:0"], ["none", "0-1"]),
        ("index.interval.bytes", ["0"], ["-1"]),
        ("max.compaction.lag.ms", ["1"], ["0"]),
        ("max.message.bytes", ["0", "2147483647"], ["-1", "2147483648", "99999999999"]),
        ("message.timestamp.after.max.ms", ["0"], ["-1"]),
        ("message.timestamp.before.max.ms", ["0", "9223372036854775807"], ["-1"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["foo", "createtime"]),
        ("min.cleanable.dirty.ratio", ["0", "1", "1e-1", "0.25"], ["2", "-0.1", "x", "nan"]),
        ("min.compaction.lag.ms", ["0"], ["-1"]),
        ("min.insync.replicas", ["1", "3"], ["0"]),
        ("preallocate", ["true", "FALSE", "TRUE"], ["maybe", "1", ""]),
        ("retention.bytes", ["-1", "0"], ["-2"]),
        ("retention.ms", ["-1", "+5", " 77 "], ["-5", "abc", "1.5", "1_000", "", "\u0661"]),
        ("segment.bytes", ["1048576"], ["10", "1048575"]),
        ("segment.index.bytes", ["4"], ["3"]),
        ("segment.jitter.ms", ["0", "999999999999999"], ["-1"]),
        ("segment.ms", ["1"], ["0"]),
        ("unclean.leader.election.enable", ["true"], ["yes"]),
    ],
)
def test_limits_are_kafkas(key: str, good: list[str], bad: list[str]) -> None:
    definition = TOPIC_CONFIGS[key]
    for text in good:
        definition.parse(text)
    for text in bad:
        with pytest.raises(ConfigError):
            definition.parse(text)


def test_every_default_is_a_value_that_may_be_set() -> None:
    for definition in TOPIC_CONFIGS.values():
        assert definition.default is not None
        definition.parse(definition.default)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "odradek.archive.max.bytes",
            "-2",
            "Invalid value -2 for configuration odradek.archive.max.bytes: Value must be at least"
            " -1",
        ),
        (
            "odradek.archive.max.ms",
            "30d",
            "Invalid value 30d for configuration odradek.archive.max.ms: Not a number of type LONG",
        ),
    ],
)
def test_a_cap_that_is_none_is_refused_with_kafkas_words(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TOPIC_CONFIGS[name].parse(text)
    assert str(refused.value) == reason

"""The keys about the records of share groups (KIP-932, KIP-1191): a broker's, and those that a
group may have of its own (resource type GROUP), with Kafka's names and limits.

They say on which terms the leader of a partition gives records to members; what concerns the
members of a group is in `group_configs`. Two are ours: how long a record rests before it is
delivered again, and by how much that grows.
"""

import re
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigScope,
    ConfigSynonym,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    define,
    one_of,
)
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_error

DURATION_PREFIX: Final = "by_duration:"
DAY_MS: Final = 86_400_000
_LEADER: Final = "odradek.coordinator.share.partition"
_HOST: Final = "odradek.node.router.share.partitions"
_CHECKS: Final = "odradek.cluster.controller.config_checks"
_DEAD_LETTERS: Final = "odradek.node.router.share.dead_letter_queue"
_DURATION: Final = re.compile(
    r"P(?:(?P<days>[0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,9})H)?(?:(?P<minutes>[0-9]{1,9})M)?"
    r"(?:(?P<seconds>[0-9]{1,9})(?:\.(?P<fraction>[0-9]{1,9}))?S)?)?\Z",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration of ISO 8601 in days, hours, minutes and seconds, as in
    `P1DT2H`; None if it is none."""
    found = _DURATION.match(text)
    if found is None or text.upper() == "P":
        return None
    parts = {name: int(value) for name, value in found.groupdict("0").items()}
    fraction = found["fraction"]
    millis = int(fraction.ljust(3, "0")[:3]) if fraction else 0
    minutes = (parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]
    return (minutes * 60 + parts["seconds"]) * 1_000 + millis


def _is_offset_reset(value: ConfigValue) -> bool:
    if not isinstance(value, str):
        return False
    if value.startswith(DURATION_PREFIX):
        return duration_ms(value.removeprefix(DURATION_PREFIX)) is not None
    return value in ("earliest", "latest")


def _can_be_dead_letter_topic(value: ConfigValue) -> bool:
    if value == "":
        return True
    return (
        isinstance(value, str)
        and topic_name_error(value) is None
        and value not in INTERNAL_TOPICS
        and not value.startswith("__")
    )


def _broker(name: str, default: int, documentation: str, low: int, high: int) -> ConfigDefinition:
    is_bound = name.startswith(("group.share.min.", "group.share.max."))
    return define(
        name,
        ConfigType.INT,
        default,
        documentation,
        enforced_by=_CHECKS if is_bound else _LEADER,
        validator=between(low, high),
        scope=ConfigScope.CLUSTER,
    )


def _bounded(
    kind: str, default: tuple[int, int, int], documentation: str, limits: tuple[int, ...]
) -> tuple[ConfigDefinition, ...]:
    """A broker's key with the two that bound what groups may have instead. `default` is (default,
    min, max), `limits` the low and high of each in that order."""
    value, least, most = default
    return (
        _broker(f"group.share.{kind}", value, documentation, limits[0], limits[1]),
        _broker(
            f"group.share.min.{kind}",
            least,
            f"The smallest share.{kind} that may be set for a group.",
            limits[2],
            limits[3],
        ),
        _broker(
            f"group.share.max.{kind}",
            most,
            f"The largest share.{kind} that may be set for a group.",
            limits[4],
            limits[5],
        ),
    )


_LOCK: Final = (
    "How long a member may keep a record before others get it, unless it renews the lock."
)
_LIMIT: Final = "How often a record is delivered before it is given up."
_LOCKS: Final = "How many records of a partition a share group may have under way at a time."

SHARE_RECORD_CONFIGS: Final = (
    *_bounded("delivery.count.limit", (5, 2, 10), _LIMIT, (2, 10, 2, 5, 5, 25)),
    *_bounded(
        "partition.max.record.locks",
        (2_000, 100, 4_000),
        _LOCKS,
        (100, 10_000, 100, 2_000, 2_000, 10_000),
    ),
    *_bounded(
        "record.lock.duration.ms",
        (30_000, 15_000, 60_000),
        _LOCK,
        (1_000, 3_600_000, 1_000, 30_000, 30_000, 3_600_000),
    ),
    define(
        "group.share.max.share.sessions",
        ConfigType.INT,
        2_000,
        "How many share sessions a broker keeps; one more is refused.",
        enforced_by="odradek.node.router.share.sessions",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "errors.deadletterqueue.auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a group's dead-letter topic is created when it is first needed.",
        enforced_by=_DEAD_LETTERS,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "errors.deadletterqueue.topic.name.prefix",
        ConfigType.STRING,
        "dlq.",
        "How the names of dead-letter topics begin; empty for any name.",
        enforced_by=_DEAD_LETTERS,
        scope=ConfigScope.CLUSTER,
    ),
)
"""Parts of the broker's table."""


def _own(kind: str, default: int, documentation: str) -> ConfigDefinition:
    return define(
        f"share.{kind}",
        ConfigType.INT,
        default,
        documentation,
        enforced_by=_LEADER,
        validator=at_least(1),
        synonyms=(ConfigSynonym(f"group.share.{kind}"),),
    )


SHARE_GROUP_RECORD_CONFIGS: Final = (
    define(
        "errors.deadletterqueue.copy.record.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether key and value of a record are copied to the dead-letter topic, and not only"
        " where the record is.",
        enforced_by=_DEAD_LETTERS,
    ),
    define(
        "errors.deadletterqueue.topic.name",
        ConfigType.STRING,
        "",
        "The topic that hears of records that the group rejects or gives up; empty for none. The"
        " topic must have errors.deadletterqueue.group.enable.",
        enforced_by=_DEAD_LETTERS,
        validator=Validator(
            "the name of a topic that is not internal, or empty", _can_be_dead_letter_topic
        ),
    ),
    define(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where a group begins in a partition that it has not read: at what comes next, at the"
        " earliest record, or at that of some time ago, as in by_duration:P1D.",
        enforced_by=_HOST,
        validator=Validator(
            "latest, earliest or by_duration:<duration of ISO 8601>", _is_offset_reset
        ),
    ),
    _own("delivery.count.limit", 5, _LIMIT),
    define(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "Whether records of transactions are delivered before these end, and when they abort.",
        enforced_by=_HOST,
        validator=one_of("read_uncommitted", "read_committed"),
    ),
    _own("partition.max.record.locks", 2_000, _LOCKS),
    _own("record.lock.duration.ms", 30_000, _LOCK),
    define(
        "share.redelivery.backoff.factor",
        ConfigType.DOUBLE,
        1.0,
        "By how much share.redelivery.delay.ms grows with each delivery of a record, up to a day.",
        enforced_by=_LEADER,
        validator=between(1, 100),
    ),
    define(
        "share.redelivery.delay.ms",
        ConfigType.INT,
        0,
        "How long a record rests that was released or whose lock has ended, before it is delivered"
        " again.",
        enforced_by=_LEADER,
        validator=between(0, DAY_MS),
    ),
    define(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether members may renew their locks.",
        enforced_by=_HOST,
    ),
)
"""Parts of the groups' table."""

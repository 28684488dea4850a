"""The settings of groups: Kafka's keys (KIP-848, KIP-932, KIP-1071, KIP-1191; 4.3), and ours.

A group may set a key of its own (resource type GROUP), between the broker's
`group.<kind>.min.<key>` and `group.<kind>.max.<key>`. Otherwise it has the value of the broker's
`group.<kind>.<key>`. One field here declares all four.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    INT32_MAX,
    ConfigError,
    ConfigValue,
    at_least,
    between,
    invalid_value,
    one_of,
    satisfying,
)
from odradek.cluster.metadata.config_schema import (
    Bound,
    GroupDefault,
    Strings,
    boolean,
    converted,
    double,
    integer,
    long,
    settings,
    string,
    strings,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.topic_names import topic_name_error

GROUP: Final = ConfigResourceType.GROUP
UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final = (UNIFORM, RANGE)
PROTOCOLS: Final = ("classic", "consumer", "share", "streams")
"""By which members may join groups, as ListGroups names the types of groups."""
DAY_MS: Final = 86_400_000
DURATION_PREFIX: Final = "by_duration:"
_RESETS: Final = ("earliest", "latest")

# Keys that all of the newer kinds of group have; the class gives their prefix.
_SESSION_TIMEOUT_MS: Final = integer(
    45_000,
    "How long a member of the group may send no heartbeat. Then the coordinator removes it.",
    enforced_by="odradek.coordinator.group.modern.heartbeats",
    validator=at_least(1),
    broker=GroupDefault(low=Bound(45_000), high=Bound(60_000)),
)
_HEARTBEAT_INTERVAL_MS: Final = integer(
    5_000,
    "The longest interval between the heartbeats of a member. The coordinator sets shorter ones"
    " while the group reconciles, and for groups with few members.",
    enforced_by="odradek.coordinator.group.modern.heartbeats",
    validator=at_least(1),
    broker=GroupDefault(low=Bound(5_000), high=Bound(15_000)),
)
_ASSIGNMENT_INTERVAL_MS: Final = integer(
    100,
    "The shortest time between two target assignments of the group: changes in between are assigned"
    " together.",
    enforced_by="odradek.coordinator.group.modern.target_assignment",
    validator=at_least(0),
    broker=GroupDefault(between(0, 15_000), low=Bound(0), high=Bound(15_000)),
)
_MAX_SIZE: Final = integer(
    INT32_MAX,
    "The most members that a group of this kind may have.",
    enforced_by="odradek.coordinator.group.modern.heartbeats",
    validator=at_least(1),
    is_broker_key=True,
)


class MigrationPolicy(StrEnum):
    """Between which protocols a group may change while it has members (KIP-848)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        """From classic to consumer."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        """From consumer to classic."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@settings(GROUP, "consumer.")
class ConsumerGroupSettings:
    """What holds for consumer groups, or for one of them (KIP-848)."""

    session_timeout_ms: int = _SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = _HEARTBEAT_INTERVAL_MS
    is_interval_fixed: bool = False
    """Whether the interval was set for this group: then it applies while nothing changes."""
    assignment_interval_ms: int = _ASSIGNMENT_INTERVAL_MS
    max_size: int = _MAX_SIZE
    assignors: Strings = converted(
        strings(
            ",".join(ASSIGNORS),
            "The assignors that members of consumer groups may select. The first is the default.",
            enforced_by="odradek.coordinator.group.consumer.target_assignment",
            validator=one_of(*ASSIGNORS),
            is_broker_key=True,
        ),
        lambda names: names or ASSIGNORS,
    )
    migration_policy: MigrationPolicy = converted(
        string(
            MigrationPolicy.BIDIRECTIONAL,
            "Whether a group that has members may change from the classic protocol to the consumer"
            " protocol (upgrade), back (downgrade), both or neither.",
            enforced_by="odradek.coordinator.group.consumer.migration",
            validator=one_of(*MigrationPolicy),
            is_broker_key=True,
        ),
        MigrationPolicy,
    )


@settings(GROUP, "streams.")
class StreamsGroupSettings:
    """What holds for streams groups, or for one of them (KIP-1071)."""

    session_timeout_ms: int = _SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = _HEARTBEAT_INTERVAL_MS
    is_interval_fixed: bool = False
    """As for consumer groups."""
    assignment_interval_ms: int = _ASSIGNMENT_INTERVAL_MS
    initial_rebalance_delay_ms: int = integer(
        3_000,
        "How long the coordinator waits after the first member has joined before it assigns tasks.",
        enforced_by="odradek.coordinator.group.streams.groups",
        validator=at_least(0),
        broker=GroupDefault(),
    )
    num_standby_replicas: int = integer(
        0,
        "How many standby tasks each stateful task has.",
        enforced_by="odradek.coordinator.group.streams.target_assignment",
        validator=at_least(0),
        broker=GroupDefault(high=Bound(2, name="group.streams.max.standby.replicas")),
    )
    max_size: int = _MAX_SIZE


_DURATION: Final = re.compile(
    r"P(?:(?P<days>[0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,9})H)?(?:(?P<minutes>[0-9]{1,9})M)?"
    r"(?:(?P<seconds>[0-9]{1,9})(?:\.(?P<fraction>[0-9]{1,9}))?S)?)?\Z",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int | None:
    """The milliseconds of an ISO 8601 duration in days, hours, minutes and seconds, as in
    `P1DT2H`; None if the text is none."""
    found = _DURATION.match(text)
    if found is None or text.upper() == "P":
        return None
    parts = {name: int(value) for name, value in found.groupdict("0").items()}
    fraction = found["fraction"]
    millis = int(fraction.ljust(3, "0")[:3]) if fraction else 0
    minutes = (parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]
    return (minutes * 60 + parts["seconds"]) * 1_000 + millis


def _check_offset_reset(name: str, value: ConfigValue) -> None:
    kind, prefix, duration = str(value).partition(DURATION_PREFIX)
    is_valid = not kind and duration_ms(duration) is not None if prefix else kind in _RESETS
    if not is_valid:
        raise invalid_value(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either"
            " 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )


def _can_be_dead_letter_topic(value: ConfigValue) -> bool:
    name = str(value)
    return not name or (topic_name_error(name) is None and not name.startswith("__"))


@settings(GROUP, "share.")
class ShareGroupSettings:
    """What holds for share groups, or for one of them: for its members, and for the records that
    the leaders of its partitions deliver (KIP-932)."""

    session_timeout_ms: int = _SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = _HEARTBEAT_INTERVAL_MS
    is_interval_fixed: bool = False
    """As for consumer groups."""
    assignment_interval_ms: int = _ASSIGNMENT_INTERVAL_MS
    max_size: int = integer(
        200,
        "How many members a share group may have.",
        enforced_by="odradek.coordinator.group.modern.heartbeats",
        validator=between(1, 1_000),
        is_broker_key=True,
    )
    lock_duration_ms: int = integer(
        30_000,
        "How long a member may hold a record before others get it, unless it renews the lock.",
        enforced_by="odradek.coordinator.share.partition",
        name="share.record.lock.duration.ms",
        validator=at_least(1_000),
        broker=GroupDefault(
            between(1_000, 3_600_000),
            low=Bound(15_000, between(1_000, 30_000)),
            high=Bound(60_000, between(30_000, 3_600_000)),
        ),
    )
    delivery_count_limit: int = integer(
        5,
        "How often a record is delivered before it is archived.",
        enforced_by="odradek.coordinator.share.partition",
        validator=at_least(2),
        broker=GroupDefault(
            between(2, 10), low=Bound(2, between(2, 5)), high=Bound(10, between(5, 25))
        ),
    )
    record_locks_max: int = integer(
        2_000,
        "How many records of a partition a share group may have in flight.",
        enforced_by="odradek.coordinator.share.partition",
        name="share.partition.max.record.locks",
        validator=at_least(100),
        broker=GroupDefault(
            between(100, 10_000),
            low=Bound(100, between(100, 2_000)),
            high=Bound(4_000, between(2_000, 10_000)),
        ),
    )
    redelivery_delay_ms: int = integer(
        0,
        "How long a record that was released, or whose lock has expired, is delayed before it is"
        " delivered again. Kafka does not have this key.",
        enforced_by="odradek.coordinator.share.partition",
        validator=between(0, DAY_MS),
    )
    redelivery_backoff: float = double(
        1.0,
        "The factor by which share.redelivery.delay.ms grows with each delivery of a record, up to"
        " one day. Kafka does not have this key.",
        enforced_by="odradek.coordinator.share.partition",
        name="share.redelivery.backoff.factor",
        validator=between(1, 100),
    )
    is_read_committed: bool = converted(
        string(
            "read_uncommitted",
            "Whether records of transactions are delivered only after the commit.",
            enforced_by="odradek.node.router.share.partitions",
            name="share.isolation.level",
            validator=one_of("read_committed", "read_uncommitted"),
        ),
        lambda level: level == "read_committed",
    )
    may_renew: bool = boolean(
        True,
        "Whether members may renew their locks.",
        enforced_by="odradek.node.router.share.partitions",
        name="share.renew.acknowledge.enable",
    )
    auto_offset_reset: str = string(
        "latest",
        "Where a group starts in a partition that it has not read: at the end (latest), at the"
        " earliest record, or at the first record of so long ago, as in by_duration:P1D.",
        enforced_by="odradek.node.router.share.partitions",
        validator=_check_offset_reset,
    )
    dead_letter_topic: str = string(
        "",
        "The topic for records that the group rejects or delivers too often; empty for none. The"
        " topic must have errors.deadletterqueue.group.enable.",
        enforced_by="odradek.node.router.share.dead_letter_queue",
        name="errors.deadletterqueue.topic.name",
        validator=satisfying(
            "Must be the name of a topic that is not internal, or empty", _can_be_dead_letter_topic
        ),
    )
    copies_dead_letters: bool = boolean(
        False,
        "Whether key and value of a record are copied to the dead-letter topic, besides the"
        " record's position.",
        enforced_by="odradek.node.router.share.dead_letter_queue",
        name="errors.deadletterqueue.copy.record.enable",
    )

    @property
    def begins_earliest(self) -> bool:
        """Whether the group starts at the earliest record of a partition it has not read."""
        return self.auto_offset_reset == "earliest"

    @property
    def begins_before_ms(self) -> int | None:
        """The age of the first record that the group reads; None if it does not go by time."""
        reset = self.auto_offset_reset
        if not reset.startswith(DURATION_PREFIX):
            return None
        return duration_ms(reset.removeprefix(DURATION_PREFIX))

    def redelivery_ms(self, delivery_count: int, now_ms: int) -> int:
        """When a record that is released now, delivered this often, is available again; 0: now."""
        if not self.redelivery_delay_ms or delivery_count <= 0:
            return 0
        delay_ms = self.redelivery_delay_ms * self.redelivery_backoff ** (delivery_count - 1)
        return now_ms + int(min(delay_ms, DAY_MS))

    @property
    def throttle_from(self) -> int:
        """From this delivery count on, a record may be what makes its consumers fail. It is
        delivered with few others, or alone."""
        return max(2, (self.delivery_count_limit + 1) // 2)


# -- policies: admission, deletion of empty groups, rewind -----------------------------------------

EPHEMERAL: Final = "group.ephemeral"
EPHEMERAL_PATTERNS: Final = "group.ephemeral.patterns"
_POLICIES: Final = "odradek.coordinator.group.policies"


def _are_patterns(value: ConfigValue) -> bool:
    return isinstance(value, tuple) and not any("*" in pattern[:-1] for pattern in value)


def _check_protocols(name: str, value: ConfigValue) -> None:
    one_of(*PROTOCOLS)(name, value)
    if not value:
        raise ConfigError(f"Configuration '{name}' must not be empty.")


@settings(GROUP)
class GroupPolicySettings:
    """Keys of ours for groups of every kind.

    An ephemeral group is deleted, with its offsets, some time after its last member has left. A
    group is ephemeral if its own key says so, or else if a pattern of the broker's matches its
    name. A pattern is a whole name, or a prefix and a star: an expression could contain a comma.
    """

    is_ephemeral: bool = boolean(
        False,
        "Whether the group is deleted, with its offsets, when its last member has left. If it is"
        " not set, the broker's group.ephemeral.patterns apply.",
        enforced_by=_POLICIES,
        name=EPHEMERAL,
    )
    ephemeral_patterns: Strings = strings(
        "",
        "The groups that are ephemeral unless they set group.ephemeral: names, or prefixes and a"
        " star, as in console-consumer-*.",
        enforced_by=_POLICIES,
        validator=satisfying(
            "Must be a list of names, each of which may end in a star", _are_patterns
        ),
        is_broker_key=True,
    )
    ttl_ms: int = long(
        0,
        "How long an ephemeral group is kept after its last member has left; 0: not at all.",
        enforced_by=_POLICIES,
        name="group.ttl.ms",
        validator=at_least(0),
        broker=GroupDefault(name="group.ephemeral.ttl.ms"),
    )
    protocols: frozenset[str] = converted(
        strings(
            ",".join(PROTOCOLS),
            "The protocols by which members may join the group.",
            enforced_by="odradek.coordinator.group.administration.admission",
            name="group.protocol.allow",
            validator=_check_protocols,
        ),
        frozenset,
    )
    rewinds_by_commit: bool = boolean(
        False,
        "Whether a commit of offsets by a client that is not a member of the group, as by tools"
        " that reset offsets, rewinds the group while it has members. Kafka refuses such commits.",
        enforced_by="odradek.coordinator.group.rewind.rewind_by_commit",
        name="group.rewind.by.commit.enable",
    )


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name equals a pattern, or starts with one that ends in a star."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )

"""The keys of streams groups (KIP-1071): a broker's, with Kafka's names and limits (4.3), and those
that a group may have of its own (resource type GROUP).

A group's own value must lie between the broker's min and max of that key.
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    INT32_MAX,
    ConfigDefinition,
    ConfigScope,
    ConfigType,
    at_least,
    between,
    define,
)

_CHECKS: Final = "odradek.cluster.controller.config_checks"
_HEARTBEATS: Final = "odradek.coordinator.group.streams.heartbeats"
_ASSIGNING: Final = "odradek.coordinator.group.streams.target_assignment"
_GROUPS: Final = "odradek.coordinator.group.streams.groups"


def _number(
    name: str, default: int, documentation: str, enforced_by: str, *, least: int = 1
) -> ConfigDefinition:
    return define(
        name,
        ConfigType.INT,
        default,
        documentation,
        enforced_by=enforced_by,
        validator=at_least(least),
        scope=ConfigScope.CLUSTER,
    )


STREAMS_BROKER_CONFIGS: Final = (
    define(
        "group.streams.assignment.interval.ms",
        ConfigType.INT,
        100,
        "How long after a target assignment of a streams group the next one is made at the"
        " earliest: what changes in between is assigned together.",
        enforced_by=_ASSIGNING,
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _number(
        "group.streams.heartbeat.interval.ms",
        5_000,
        "How often members of streams groups come at the least. They are asked to come sooner"
        " while their group reconciles, and while there are so few of them that it costs nothing.",
        _HEARTBEATS,
    ),
    _number(
        "group.streams.initial.rebalance.delay.ms",
        3_000,
        "How long a streams group waits, from its first member on, before tasks are assigned.",
        _GROUPS,
        least=0,
    ),
    define(
        "group.streams.max.assignment.interval.ms",
        ConfigType.INT,
        15_000,
        "The longest streams.assignment.interval.ms that may be set for a group.",
        enforced_by=_CHECKS,
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _number(
        "group.streams.max.heartbeat.interval.ms",
        15_000,
        "The longest streams.heartbeat.interval.ms that may be set for a group.",
        _CHECKS,
    ),
    _number(
        "group.streams.max.session.timeout.ms",
        60_000,
        "The longest streams.session.timeout.ms that may be set for a group.",
        _CHECKS,
    ),
    _number(
        "group.streams.max.size",
        INT32_MAX,
        "How many members a streams group may have.",
        _HEARTBEATS,
    ),
    _number(
        "group.streams.max.standby.replicas",
        2,
        "The largest streams.num.standby.replicas that may be set for a group.",
        _CHECKS,
        least=0,
    ),
    define(
        "group.streams.min.assignment.interval.ms",
        ConfigType.INT,
        0,
        "The shortest streams.assignment.interval.ms that may be set for a group.",
        enforced_by=_CHECKS,
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _number(
        "group.streams.min.heartbeat.interval.ms",
        5_000,
        "The shortest streams.heartbeat.interval.ms that may be set for a group.",
        _CHECKS,
    ),
    _number(
        "group.streams.min.session.timeout.ms",
        45_000,
        "The shortest streams.session.timeout.ms that may be set for a group.",
        _CHECKS,
    ),
    _number(
        "group.streams.num.standby.replicas",
        0,
        "How many members stand by for each task that keeps state.",
        _ASSIGNING,
        least=0,
    ),
    _number(
        "group.streams.session.timeout.ms",
        45_000,
        "After how long a silence a member of a streams group is taken for gone.",
        _HEARTBEATS,
    ),
)
"""Parts of the broker's table."""


def _own(
    name: str, default: int, documentation: str, enforced_by: str, *, least: int = 1
) -> ConfigDefinition:
    return define(
        name,
        ConfigType.INT,
        default,
        documentation,
        enforced_by=enforced_by,
        validator=at_least(least),
        synonyms=(f"group.{name}",),
    )


STREAMS_GROUP_CONFIGS: Final = (
    define(
        "streams.assignment.interval.ms",
        ConfigType.INT,
        100,
        "How long after a target assignment the group's next one is made at the earliest.",
        enforced_by=_ASSIGNING,
        validator=at_least(0),
        synonyms=("group.streams.assignment.interval.ms",),
    ),
    _own(
        "streams.heartbeat.interval.ms",
        5_000,
        "How often the group's members come while nothing happens.",
        _HEARTBEATS,
    ),
    _own(
        "streams.initial.rebalance.delay.ms",
        3_000,
        "How long the group waits, from its first member on, before tasks are assigned.",
        _GROUPS,
        least=0,
    ),
    _own(
        "streams.num.standby.replicas",
        0,
        "How many members stand by for each task that keeps state.",
        _ASSIGNING,
        least=0,
    ),
    _own(
        "streams.session.timeout.ms",
        45_000,
        "After how long a silence a member of the group is taken for gone.",
        _HEARTBEATS,
    ),
)
"""Parts of the table of groups."""

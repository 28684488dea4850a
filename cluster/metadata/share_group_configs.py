"""The keys of share groups' members (KIP-932): a broker's, with Kafka's names and limits (4.3), and
those that a group may have of its own (resource type GROUP).

A group's own value must lie between the broker's min and max of that key.
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigScope,
    ConfigType,
    at_least,
    between,
    define,
)

_COORDINATOR: Final = "odradek.coordinator.group.share.heartbeats"
_CHECKS: Final = "odradek.cluster.controller.config_checks"


def _duration(name: str, default: int, documentation: str, enforced_by: str) -> ConfigDefinition:
    return define(
        name,
        ConfigType.INT,
        default,
        documentation,
        enforced_by=enforced_by,
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    )


SHARE_GROUP_BROKER_CONFIGS: Final = (
    define(
        "group.share.assignment.interval.ms",
        ConfigType.INT,
        100,
        "How long after a target assignment of a share group the next one is made at the earliest:"
        " what changes in between is assigned together.",
        enforced_by="odradek.coordinator.group.share.target_assignment",
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.share.heartbeat.interval.ms",
        5_000,
        "How often members of share groups come at the least. They are asked to come sooner while"
        " something changes, and while there are so few of them that it costs nothing.",
        _COORDINATOR,
    ),
    define(
        "group.share.max.assignment.interval.ms",
        ConfigType.INT,
        15_000,
        "The longest share.assignment.interval.ms that may be set for a group.",
        enforced_by=_CHECKS,
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.share.max.heartbeat.interval.ms",
        15_000,
        "The longest share.heartbeat.interval.ms that may be set for a group.",
        _CHECKS,
    ),
    _duration(
        "group.share.max.session.timeout.ms",
        60_000,
        "The longest share.session.timeout.ms that may be set for a group.",
        _CHECKS,
    ),
    define(
        "group.share.max.size",
        ConfigType.INT,
        200,
        "How many members a share group may have.",
        enforced_by=_COORDINATOR,
        validator=between(1, 1_000),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.share.min.assignment.interval.ms",
        ConfigType.INT,
        0,
        "The shortest share.assignment.interval.ms that may be set for a group.",
        enforced_by=_CHECKS,
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.share.min.heartbeat.interval.ms",
        5_000,
        "The shortest share.heartbeat.interval.ms that may be set for a group.",
        _CHECKS,
    ),
    _duration(
        "group.share.min.session.timeout.ms",
        45_000,
        "The shortest share.session.timeout.ms that may be set for a group.",
        _CHECKS,
    ),
    _duration(
        "group.share.session.timeout.ms",
        45_000,
        "After how long a silence a member of a share group is taken for gone.",
        _COORDINATOR,
    ),
)
"""Parts of the broker's table."""


SHARE_GROUP_CONFIGS: Final = (
    define(
        "share.assignment.interval.ms",
        ConfigType.INT,
        100,
        "How long after a target assignment the share group's next one is made at the earliest.",
        enforced_by="odradek.coordinator.group.share.target_assignment",
        validator=at_least(0),
        synonyms=("group.share.assignment.interval.ms",),
    ),
    define(
        "share.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "How often the share group's members come while nothing happens.",
        enforced_by=_COORDINATOR,
        validator=at_least(1),
        synonyms=("group.share.heartbeat.interval.ms",),
    ),
    define(
        "share.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "After how long a silence a member of the share group is taken for gone.",
        enforced_by=_COORDINATOR,
        validator=at_least(1),
        synonyms=("group.share.session.timeout.ms",),
    ),
)
"""Parts of a group's table."""

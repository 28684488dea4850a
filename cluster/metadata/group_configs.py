"""The keys of consumer groups (KIP-848): a broker's, with Kafka's names and limits (4.3), and the
few that a group may have of its own (resource type GROUP).

A group's own value must lie between the broker's min and max of that key. What streams groups can
be told is in `streams_configs`, what share groups can be told in `share_group_configs`.
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    INT32_MAX,
    ConfigDefinition,
    ConfigScope,
    ConfigType,
    Definitions,
    at_least,
    between,
    define,
    definitions_by_name,
    list_of,
    one_of,
)
from odradek.cluster.metadata.group_policy_configs import POLICY_GROUP_CONFIGS
from odradek.cluster.metadata.share_group_configs import SHARE_GROUP_CONFIGS
from odradek.cluster.metadata.share_record_configs import SHARE_GROUP_RECORD_CONFIGS
from odradek.cluster.metadata.streams_group_configs import STREAMS_GROUP_CONFIGS

ASSIGNORS: Final = ("uniform", "range")
_COORDINATOR: Final = "odradek.coordinator.group.consumer.heartbeats"


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


CONSUMER_GROUP_CONFIGS: Final = (
    define(
        "group.consumer.assignment.interval.ms",
        ConfigType.INT,
        100,
        "How long after a target assignment the next one is made at the earliest: what changes"
        " in between is assigned together.",
        enforced_by="odradek.coordinator.group.consumer.target_assignment",
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.consumer.assignors",
        ConfigType.LIST,
        ",".join(ASSIGNORS),
        "The assignors that members of consumer groups may ask for; the first one is the default.",
        enforced_by="odradek.coordinator.group.consumer.target_assignment",
        validator=list_of(*ASSIGNORS),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "How often members of consumer groups come at the least. They are asked to come sooner"
        " while their group reconciles, and while there are so few of them that it costs nothing.",
        _COORDINATOR,
    ),
    define(
        "group.consumer.max.assignment.interval.ms",
        ConfigType.INT,
        15_000,
        "The longest consumer.assignment.interval.ms that may be set for a group.",
        enforced_by="odradek.cluster.controller.config_checks",
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The longest consumer.heartbeat.interval.ms that may be set for a group.",
        "odradek.cluster.controller.config_checks",
    ),
    _duration(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The longest consumer.session.timeout.ms that may be set for a group.",
        "odradek.cluster.controller.config_checks",
    ),
    define(
        "group.consumer.max.size",
        ConfigType.INT,
        INT32_MAX,
        "How many members a consumer group may have.",
        enforced_by=_COORDINATOR,
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Whether a group that has members may change from the classic protocol to the consumer"
        " protocol (upgrade), back (downgrade), both or neither.",
        enforced_by="odradek.coordinator.group.consumer.migration",
        validator=one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.consumer.min.assignment.interval.ms",
        ConfigType.INT,
        0,
        "The shortest consumer.assignment.interval.ms that may be set for a group.",
        enforced_by="odradek.cluster.controller.config_checks",
        validator=between(0, 15_000),
        scope=ConfigScope.CLUSTER,
    ),
    _duration(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        "The shortest consumer.heartbeat.interval.ms that may be set for a group.",
        "odradek.cluster.controller.config_checks",
    ),
    _duration(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "The shortest consumer.session.timeout.ms that may be set for a group.",
        "odradek.cluster.controller.config_checks",
    ),
    _duration(
        "group.consumer.session.timeout.ms",
        45_000,
        "After how long a silence a member of a consumer group is taken for gone.",
        _COORDINATOR,
    ),
)
"""Parts of the broker's table."""


GROUP_CONFIGS: Final[Definitions] = definitions_by_name(
    [
        define(
            "consumer.assignment.interval.ms",
            ConfigType.INT,
            100,
            "How long after a target assignment the group's next one is made at the earliest.",
            enforced_by="odradek.coordinator.group.consumer.target_assignment",
            validator=at_least(0),
            synonyms=("group.consumer.assignment.interval.ms",),
        ),
        define(
            "consumer.heartbeat.interval.ms",
            ConfigType.INT,
            5_000,
            "How often the group's members come while nothing happens.",
            enforced_by=_COORDINATOR,
            validator=at_least(1),
            synonyms=("group.consumer.heartbeat.interval.ms",),
        ),
        define(
            "consumer.session.timeout.ms",
            ConfigType.INT,
            45_000,
            "After how long a silence a member of the group is taken for gone.",
            enforced_by=_COORDINATOR,
            validator=at_least(1),
            synonyms=("group.consumer.session.timeout.ms",),
        ),
        *STREAMS_GROUP_CONFIGS,
        *POLICY_GROUP_CONFIGS.values(),
        *SHARE_GROUP_RECORD_CONFIGS,
        *SHARE_GROUP_CONFIGS,
    ]
)

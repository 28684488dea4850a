"""The keys of ours that say who may be in a group, how long it stays and who may rewind it:
group.ephemeral and its kin, which hold for groups of every kind.

A group that is ephemeral goes, with its offsets, some time after its last member has. Which groups
are is said for one group (resource type GROUP), or by the names of many in the broker's
configuration: whole names, and prefixes with a star behind them. No more than that, because a list
of expressions could not be told apart at its commas.
"""

from collections.abc import Sequence
from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigScope,
    ConfigType,
    ConfigValue,
    Definitions,
    Validator,
    at_least,
    define,
    definitions_by_name,
)

PROTOCOLS: Final = ("classic", "consumer", "share", "streams")
"""By which members may join groups, as ListGroups names the types of groups."""
EPHEMERAL: Final = "group.ephemeral"
EPHEMERAL_PATTERNS: Final = "group.ephemeral.patterns"
REWIND_BY_COMMIT: Final = "group.rewind.by.commit.enable"
_ENFORCED_BY: Final = "odradek.coordinator.group.policies"


def _is_pattern_list(value: ConfigValue) -> bool:
    return isinstance(value, tuple) and not any("*" in pattern[:-1] for pattern in value)


def _is_protocol_list(value: ConfigValue) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and set(value) <= set(PROTOCOLS)


POLICY_BROKER_CONFIGS: Final = (
    define(
        EPHEMERAL_PATTERNS,
        ConfigType.LIST,
        "",
        "The groups that are ephemeral unless they say otherwise: names, or beginnings of names"
        " with a star behind them, as console-consumer-*.",
        enforced_by=_ENFORCED_BY,
        validator=Validator(
            "a comma-separated list of names; a star may stand at an end", _is_pattern_list
        ),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "group.ephemeral.ttl.ms",
        ConfigType.LONG,
        0,
        "How long an ephemeral group stays when its last member has gone; 0 for not at all.",
        enforced_by=_ENFORCED_BY,
        validator=at_least(0),
        scope=ConfigScope.CLUSTER,
    ),
)
"""Parts of the broker's table."""

POLICY_GROUP_CONFIGS: Final[Definitions] = definitions_by_name(
    [
        define(
            EPHEMERAL,
            ConfigType.BOOLEAN,
            "false",
            "Whether the group goes, with its offsets, when its last member has gone. If it is not"
            " set the broker's group.ephemeral.patterns say so.",
            enforced_by=_ENFORCED_BY,
        ),
        define(
            "group.protocol.allow",
            ConfigType.LIST,
            ",".join(PROTOCOLS),
            "The protocols by which members may join the group.",
            enforced_by="odradek.coordinator.group.administration.admission",
            validator=Validator(f"one or more of: {', '.join(PROTOCOLS)}", _is_protocol_list),
        ),
        define(
            REWIND_BY_COMMIT,
            ConfigType.BOOLEAN,
            "false",
            "Whether offsets that somebody commits who is no member of the group, as tools do that"
            " reset offsets, rewind the group while it has members. Kafka refuses such commits.",
            enforced_by="odradek.coordinator.group.rewind.rewind_by_commit",
        ),
        define(
            "group.ttl.ms",
            ConfigType.LONG,
            0,
            "How long the group stays when its last member has gone, if it is ephemeral.",
            enforced_by=_ENFORCED_BY,
            validator=at_least(0),
            synonyms=("group.ephemeral.ttl.ms",),
        ),
    ]
)
"""Parts of the groups' table."""


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of the patterns, or begins as one that ends in a star."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )

"""The keys of client metrics subscriptions (KIP-714): which metrics which clients push, and how
often.

A subscription is a resource of type CLIENT_METRICS and exists while one of its keys is set. Its
match patterns are RE2 expressions; the router compiles them, because this floor has no RE2.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from odradek.cluster.metadata.config_definitions import ConfigError, ConfigValue
from odradek.cluster.metadata.config_schema import Strings, converted, integer, settings, strings
from odradek.cluster.metadata.image import ConfigResourceType

MatchPatterns: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a parameter and the expression that it must match as a whole; of each parameter one."""

ALL_METRICS: Final = "*"
"""In place of prefixes of metric names: all metrics."""
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
MATCH_PARAMETERS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def illegal_pattern(item: str) -> ConfigError:
    """The error for an item of `match`, with Kafka's text."""
    return ConfigError(f"Illegal client matching pattern: {item}")


def match_patterns(items: Sequence[str]) -> MatchPatterns:
    """The patterns of `match`, a list of PARAMETER=EXPRESSION; of two for one parameter the last.
    ConfigError unless the items have that form."""
    patterns = {}
    for item in items:
        # As Kafka's split: empty parts at the end do not count.
        parameter, *expressions = item.rstrip("=").split("=")
        if len(expressions) != 1 or parameter.strip() not in MATCH_PARAMETERS:
            raise illegal_pattern(item)
        patterns[parameter.strip()] = expressions[0].strip()
    return tuple(patterns.items())


def interval_error(interval_ms: int) -> str | None:
    """Why clients cannot push at this interval, in Kafka's words; None if they can."""
    if INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        return None
    return (
        f"Invalid value {interval_ms} for interval.ms, interval must be between"
        f" {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
    )


def _check_match(_name: str, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    match_patterns(value)


@settings(ConfigResourceType.CLIENT_METRICS)
class ClientMetricsSettings:
    """One subscription."""

    metrics: Strings = strings(
        "",
        "The metrics that clients push, as prefixes of their names. * stands for all metrics.",
        enforced_by="odradek.node.router.telemetry.subscriptions",
    )
    interval_ms: int = integer(
        INTERVAL_MS_DEFAULT,
        "How long a client waits between two pushes, from 100 ms to an hour.",
        enforced_by="odradek.node.router.telemetry.subscriptions",
    )
    match: MatchPatterns = converted(
        strings(
            "",
            "The clients that push, as a list of PARAMETER=EXPRESSION which must all match. The"
            f" parameters are {', '.join(MATCH_PARAMETERS)}; an expression of RE2 matches the"
            " whole value. Without any, all clients push.",
            enforced_by="odradek.node.router.telemetry.subscriptions",
            validator=_check_match,
        ),
        match_patterns,
    )

"""Constraints between the keys of a broker, each of which may be valid by itself.

The default for groups lies within the bounds of what a group may set, and the heartbeat interval is
shorter than the session timeout: otherwise every member would be removed. Kafka does not start if a
constraint is violated, and neither does a node. Called for the configuration that a node is started
with, and for every change of brokers' configs.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import GROUP_CONFIGS
from odradek.cluster.metadata.settings import broker_number


class ConfigConstraint(NamedTuple):
    """The value of `low` is at most that of `high`, or below it if `is_strict`."""

    low: str
    high: str
    is_strict: bool = False


def _constraints() -> Iterator[ConfigConstraint]:
    yield ConfigConstraint("group.min.session.timeout.ms", "group.max.session.timeout.ms")
    for definition in GROUP_CONFIGS.values():
        low, high = definition.bounds
        if low is not None and high is not None:
            yield ConfigConstraint(low, high)
        for default in definition.synonyms:
            if low is not None:
                yield ConfigConstraint(low, default.name)
            if high is not None:
                yield ConfigConstraint(default.name, high)
    for kind in ("consumer", "share", "streams"):
        yield ConfigConstraint(
            f"group.{kind}.heartbeat.interval.ms",
            f"group.{kind}.session.timeout.ms",
            is_strict=True,
        )


CONSTRAINTS: Final = tuple(_constraints())


def violated_constraints(layers: tuple[ConfigLayer, ...], keys: Collection[str]) -> list[str]:
    """The constraints on these keys that do not hold, one sentence each.

    Constraints on other keys are not checked: a violation that an older release let in must not
    prevent other changes.
    """
    errors = []
    for low, high, is_strict in CONSTRAINTS:
        if low not in keys and high not in keys:
            continue
        least, most = broker_number(low, layers), broker_number(high, layers)
        if least > most or (is_strict and least == most):
            relation = "less than" if is_strict else "at most"
            errors.append(
                f"{low}={least} is not valid: it must be {relation} {high}, which is {most}"
            )
    return errors

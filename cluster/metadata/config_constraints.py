"""Constraints between the keys of a broker, each of which may be valid by itself.

The default for groups lies within the bounds of what a group may set, and the heartbeat interval is
shorter than the session timeout: otherwise every member would be removed. Kafka does not start if a
constraint is violated, and neither does a node. Called for the configuration that a node is started
with, and for every change of brokers' configs.
"""

import operator
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from odradek.cluster.metadata.broker_settings import ANY_LOG_DIR, CORDONED_LOG_DIRS
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import GROUP_CONFIGS
from odradek.cluster.metadata.settings import broker_number

LESS: Final = "less than"
AT_MOST: Final = "less than or equal to"
AT_LEAST: Final = "greater than or equal to"
_HOLDS: Final = {LESS: operator.lt, AT_MOST: operator.le, AT_LEAST: operator.ge}


class ConfigConstraint(NamedTuple):
    """How the value of a key must compare with that of another, in Kafka's words."""

    key: str
    relation: str
    other: str


def _constraints() -> Iterator[ConfigConstraint]:
    yield ConfigConstraint("group.max.session.timeout.ms", AT_LEAST, "group.min.session.timeout.ms")
    for definition in GROUP_CONFIGS.values():
        low, high = definition.bounds
        if low is not None and high is not None:
            yield ConfigConstraint(high, AT_LEAST, low)
        for default in definition.synonyms:
            if low is not None:
                yield ConfigConstraint(default.name, AT_LEAST, low)
            if high is not None:
                yield ConfigConstraint(default.name, AT_MOST, high)
    for kind in ("consumer", "share", "streams"):
        yield ConfigConstraint(
            f"group.{kind}.heartbeat.interval.ms", LESS, f"group.{kind}.session.timeout.ms"
        )


CONSTRAINTS: Final = tuple(_constraints())


def violated_constraints(layers: tuple[ConfigLayer, ...], keys: Collection[str]) -> list[str]:
    """The constraints on these keys that do not hold, with Kafka's texts.

    Constraints on other keys are not checked: a violation that an older release let in must not
    prevent other changes.
    """
    return [
        f"{key} must be {relation} {other}"
        for key, relation, other in CONSTRAINTS
        if (key in keys or other in keys)
        and not _HOLDS[relation](broker_number(key, layers), broker_number(other, layers))
    ]


def cordoned_fault(value: str, paths: Collection[str]) -> str | None:
    """What is wrong with the cordoned.log.dirs of a broker with log directories at these paths
    (KIP-1066), in Kafka's words. No paths: they are not known."""
    cordoned = [each for each in (item.strip() for item in value.split(",")) if each]
    if ANY_LOG_DIR in cordoned:
        if len(cordoned) == 1:
            return None
        return f"When {CORDONED_LOG_DIRS} is set to *, it must not contain other values"
    missing = [each for each in cordoned if each not in paths]
    if not missing or not paths:
        return None
    return (
        f"All entries in {CORDONED_LOG_DIRS} must be present in log.dirs or log.dir. Missing"
        f" entries : {','.join(missing)}"
    )

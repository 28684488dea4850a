"""Settings of a broker, each good by itself, that must fit each other.

What a group begins with lies within what a group may have, and members are heard of more often than
they are given up. Kafka does not start otherwise, and neither does a node; a session shorter than
the heartbeat interval would put out every member. Called for what a node is started with, and for
every change of what brokers have.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_layers import ConfigLayer, broker_candidates, effective_value

_MEMBERSHIP: Final = ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
_BOUNDED_KEYS: Final = {
    "consumer": _MEMBERSHIP,
    "share": (
        *_MEMBERSHIP,
        "delivery.count.limit",
        "partition.max.record.locks",
        "record.lock.duration.ms",
    ),
    "streams": _MEMBERSHIP,
}


class ConfigConstraint(NamedTuple):
    """The value of `low` is at most that of `high`, or below it if `is_strict`."""

    low: str
    high: str
    is_strict: bool = False


def _constraints() -> Iterator[ConfigConstraint]:
    yield ConfigConstraint("group.min.session.timeout.ms", "group.max.session.timeout.ms")
    for family, kinds in _BOUNDED_KEYS.items():
        for kind in kinds:
            low, high = f"group.{family}.min.{kind}", f"group.{family}.max.{kind}"
            yield ConfigConstraint(low, high)
            yield ConfigConstraint(low, f"group.{family}.{kind}")
            yield ConfigConstraint(f"group.{family}.{kind}", high)
        yield ConfigConstraint(
            f"group.{family}.heartbeat.interval.ms",
            f"group.{family}.session.timeout.ms",
            is_strict=True,
        )
    yield ConfigConstraint(
        "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    )


CONSTRAINTS: Final = tuple(_constraints())


def violated_constraints(layers: tuple[ConfigLayer, ...], keys: Collection[str]) -> list[str]:
    """What does not fit, one sentence per fault, where one of these keys is concerned.

    Others are left alone: what an older release has let in must not keep anybody from changing
    something else.
    """
    faults = []
    for low, high, is_strict in CONSTRAINTS:
        if low not in keys and high not in keys:
            continue
        least, most = _value(low, layers), _value(high, layers)
        if least > most or (is_strict and least == most):
            relation = "less than" if is_strict else "at most"
            faults.append(
                f"{low}={least} is not valid: it must be {relation} {high}, which is {most}"
            )
    return faults


def _value(key: str, layers: tuple[ConfigLayer, ...]) -> int:
    definition = BROKER_CONFIGS[key]
    value, _ = effective_value(definition, broker_candidates(definition, layers))
    assert isinstance(value, int)
    return value

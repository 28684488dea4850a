"""What a metric is: name, kind, labels, and how the number of its series is bounded.

All metrics of a node are declared in families.py with these. Names follow Prometheus and
OpenMetrics: counters end in `_total`, the unit is a base unit and stands last (`_seconds`,
`_bytes`, `_ratio`), and a series of every family has the label `process`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """As in OpenMetrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class SeriesBound(StrEnum):
    """What bounds the number of a family's series on one process."""

    FIXED = "fixed"
    """Its label values do not grow with clients, topics and groups."""
    SUM = "sum"
    """`metrics.series.max` by name; the others have one series together, their sum."""
    MAX = "max"
    """`metrics.series.max` by name; the others have one series together, the largest value."""
    OMITTED = "omitted"
    """`metrics.series.max` by name; the others are left out: no number stands for them all."""


OTHER: Final = "_other"
"""The label value of the series that stands for all that have no series of their own."""

UNITS: Final = ("seconds", "bytes", "ratio")
_SUFFIXES: Final = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric. `process` is the kind of process that has it: router, worker, controller,
    supervisor, or every. A family with the label `process` is not about the process that reports
    it."""

    name: str
    kind: MetricKind
    process: str
    help: str
    labels: tuple[str, ...] = ()
    bound: SeriesBound = SeriesBound.FIXED

    @property
    def base_name(self) -> str:
        """The name in OpenMetrics' metadata."""
        return base_name(self.name, self.kind)


def base_name(name: str, kind: str) -> str:
    """The name of a family without the suffix that OpenMetrics has for its kind."""
    return name.removesuffix(_SUFFIXES.get(MetricKind(kind), ""))


def unit_of(base: str) -> str:
    """The unit that a name without suffix ends in; empty if it has none."""
    last = base.rpartition("_")[2]
    return last if last in UNITS else ""

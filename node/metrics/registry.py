"""The metrics of one process: which function reads which family, and the lines for the exposition.

Nothing is computed without a scrape; hot paths only count in integers of their own. `collect` is a
generator, so that a process can give its metrics in pieces between its other work. The texts of
names and labels are kept from one scrape to the next.

Invariant: a family is read by one function, is declared in families.py, and has no more series
than its bound allows.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.node.metrics.families import FAMILIES
from odradek.node.metrics.family import OTHER, MetricFamily, MetricKind, SeriesBound
from odradek.node.metrics.histogram import DurationHistogram, le_texts
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

LINES_OF_A_PART: Final = 200
SERIES_MAX: Final = 2_000
"""Until the configuration is known: the default of `metrics.series.max`."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value of a family that is only known when it is read. `kind` is counter or gauge; `labels`
    are pairs of name and value."""

    name: str
    kind: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class FamilyLines(msgspec.Struct, frozen=True, array_like=True):
    """Lines of one family, as they stand in the exposition."""

    name: str
    kind: str
    help: str
    lines: str


LabelValues: TypeAlias = str | tuple[str, ...]
Series: TypeAlias = (
    Mapping[str, float]
    | Mapping[tuple[str, ...], float]
    | Mapping[tuple[str, str], float]
    | Iterable[tuple[LabelValues, float]]
)
Reading: TypeAlias = Callable[[], float | Series]
HistogramReading: TypeAlias = Callable[[], Iterable[tuple[tuple[str, ...], DurationHistogram]]]


class Metrics:
    """See the module's docstring. `process` is the name of the process, for example `router-0`."""

    def __init__(self, process: str, families: Mapping[str, MetricFamily] = FAMILIES) -> None:
        self.process = process
        self.series_max = SERIES_MAX
        """Series by name of each family whose number grows with clients, topics or groups."""
        self._families = families
        self._readers: dict[str, _Reader | _HistogramReader] = {}
        self._sample_sources: list[Callable[[], Iterable[Sample]]] = []

    def follow(self, settings: BrokerSettings) -> None:
        """The configuration has changed."""
        self.series_max = settings.metrics_series_max

    def read(self, name: str, reading: Reading) -> None:
        """Read the family with this function: a number, or a number for each label value (for each
        tuple of them, if the family has several labels)."""
        assert name not in self._readers, name
        family = self._families[name]
        assert family.kind is not MetricKind.HISTOGRAM, name
        self._readers[name] = _Reader(family, self.process, reading)

    def read_histogram(self, name: str, reading: HistogramReading) -> None:
        """Read a family of histograms with this function: label values and histograms."""
        assert name not in self._readers, name
        family = self._families[name]
        assert family.kind is MetricKind.HISTOGRAM, name
        self._readers[name] = _HistogramReader(family, self.process, reading)

    def samples(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Families whose names are only known when they are read: those that clients push."""
        self._sample_sources.append(source)

    @property
    def names(self) -> frozenset[str]:
        """The families that are read."""
        return frozenset(self._readers)

    def collect(self) -> Iterator[FamilyLines]:
        """Read all families, a piece at a time. A family may come in several pieces. One that
        cannot be read is logged, and left out."""
        for name, reader in list(self._readers.items()):
            try:
                yield from reader.collect(self.series_max)
            except Exception:  # it must not end a process that serves clients
                log.exception("a metric cannot be read", metric=name)
        for source in self._sample_sources:
            yield from self._collect_samples(source())

    def values(self) -> dict[str, float]:
        """The present values without labels, several of a family added up. For tests and logs."""
        found: dict[str, float] = {}
        for part in self.collect():
            for line in part.lines.splitlines():
                name, value = series_of_line(line)
                found[name] = found.get(name, 0.0) + value
        return found

    def _collect_samples(self, samples: Iterable[Sample]) -> Iterator[FamilyLines]:
        by_name: dict[str, tuple[Sample, list[str]]] = {}
        for sample in samples:
            _, lines = by_name.setdefault(sample.name, (sample, []))
            start = series_text(sample.name, (("process", self.process), *sample.labels))
            lines.append(f"{start}{number_text(sample.value)}\n")
            if len(lines) == LINES_OF_A_PART:
                del by_name[sample.name]
                yield FamilyLines(sample.name, sample.kind, sample.help, "".join(lines))
        for first, lines in by_name.values():
            yield FamilyLines(first.name, first.kind, first.help, "".join(lines))


def series_of_line(line: str) -> tuple[str, float]:
    """The name and the value of a line of the exposition."""
    series, _, value = line.rpartition(" ")
    return series.partition("{")[0], float(value)


class _Reader:
    """Counters and gauges."""

    __slots__ = ("_family", "_process", "_reading", "_texts")

    def __init__(self, family: MetricFamily, process: str, reading: Reading) -> None:
        self._family = family
        self._process = process
        self._reading = reading
        self._texts: dict[LabelValues, str] = {}

    def collect(self, series_max: int) -> Iterator[FamilyLines]:
        family = self._family
        found = self._reading()
        if isinstance(found, int | float):
            line = f"{self._text(())}{number_text(found)}\n"
            yield FamilyLines(family.name, family.kind, family.help, line)
            return
        series = found.items() if isinstance(found, Mapping) else found
        lines: list[str] = []
        texts = self._texts
        room, rest = sys.maxsize, None
        if family.bound is not SeriesBound.FIXED:
            # A reading may have added up some series itself; and a topic may have that name.
            room, rest = series_max, (OTHER,) * len(family.labels)
        seen: list[LabelValues] = []
        others: list[float] = []
        for key, value in series:
            text = texts.get(key)
            if text is None:
                if len(texts) >= room or rest in (key, (key,)):
                    others.append(value)
                    continue
                text = self._text(key)
            seen.append(key)
            lines.append(f"{text}{number_text(value)}\n")
            if len(lines) == LINES_OF_A_PART:
                yield FamilyLines(family.name, family.kind, family.help, "".join(lines))
                lines = []
        if others and rest is not None and family.bound is not SeriesBound.OMITTED:
            value = sum(others) if family.bound is SeriesBound.SUM else max(others)
            lines.append(f"{self._text(rest)}{number_text(value)}\n")
            del texts[rest]
        if lines:
            yield FamilyLines(family.name, family.kind, family.help, "".join(lines))
        if len(texts) > len(seen) or len(texts) > room:
            # A series keeps its name as long as it is there; then another one may have the room.
            self._texts = {key: texts[key] for key in seen[:room]}

    def _text(self, key: LabelValues) -> str:
        text = self._texts[key] = series_text(
            self._family.name, _labels(self._family, self._process, key)
        )
        return text


class _HistogramReader:
    """Histograms of durations: `_bucket`, `_sum` and `_count`."""

    __slots__ = ("_family", "_process", "_reading", "_texts")

    def __init__(self, family: MetricFamily, process: str, reading: HistogramReading) -> None:
        self._family = family
        self._process = process
        self._reading = reading
        self._texts: dict[tuple[str, ...], tuple[str, ...]] = {}

    def collect(self, series_max: int) -> Iterator[FamilyLines]:
        assert self._family.bound is SeriesBound.FIXED, series_max
        family = self._family
        for key, histogram in self._reading():
            texts = self._texts.get(key)
            if texts is None:
                texts = self._texts[key] = tuple(self._line_texts(key))
            numbers = (*map(str, histogram.cumulative()), repr(histogram.sum_s))
            # The last bucket has all: it is the count, too.
            lines = zip(texts, (*numbers, numbers[-2]), strict=True)
            text = "".join(f"{start}{number}\n" for start, number in lines)
            yield FamilyLines(family.name, family.kind, family.help, text)

    def _line_texts(self, key: tuple[str, ...]) -> Iterator[str]:
        name = self._family.name
        labels = _labels(self._family, self._process, key)
        for le in le_texts():
            yield series_text(f"{name}_bucket", (*labels, ("le", le)))
        yield series_text(f"{name}_sum", labels)
        yield series_text(f"{name}_count", labels)


def _labels(family: MetricFamily, process: str, key: LabelValues) -> tuple[tuple[str, str], ...]:
    values = (key,) if isinstance(key, str) else key
    labels = tuple(zip(family.labels, values, strict=True))
    return labels if "process" in family.labels else (("process", process), *labels)


def series_text(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """A series up to its value. Labels with an empty value are left out, which is the same."""
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels if value)
    return f"{name}{{{pairs}}} "


def number_text(value: float) -> str:
    """A number as Prometheus writes it: shortest form that reads back the same."""
    if type(value) is not float:
        return str(int(value))  # a bool is not a number in the exposition format
    text = repr(value)
    if text.endswith((".0", "f", "n")):
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
    return text


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

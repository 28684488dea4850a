"""The pages of figures: ratios of medians, the machine and the method."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.brokers import Broker
from bench.cases import Figure, Result

INTRODUCTION = """\
# Benchmarks

Odradek beside Apache Kafka, written by `make bench`; do not edit it by hand. Both brokers run on
one machine with their default settings and get the same load in turns. They are compared by the
**ratio of the medians** of {rounds} rounds. The load generator runs on the same machine. Compare
ratios: absolute figures depend on the machine. Before each case of the load
generator with several records a request, free memory is filled with cached pages, as it is where a
broker has run for hours: what a machine takes to give memory that was free would be measured
otherwise.
"""


CLUSTER_INTRODUCTION = """\
# Benchmarks of a cluster

Three nodes of Odradek beside three of Apache Kafka, written by `make bench-cluster`; do not edit it
by hand. All six run on one machine with their default settings. Topics have three replicas and
min.insync.replicas 2; producers use acks=all. After the kills and the restarts the log is compared
with the acknowledged records: a run that loses, duplicates or reorders a record writes no page.
"""
COORDINATORS_INTRODUCTION = """\
# Benchmarks of the coordinators

Transactions, rebalances and share groups on one node of Odradek and of Apache Kafka, written by
`make bench-coordinators`; do not edit it by hand. Both run on one machine with their default
settings. Both run transactions for {warm_up:.0f} s before the first round, because a JVM that has
just started is several times slower. In every transaction librdkafka waits one millisecond for more
partitions before it adds the first one; this is part of both figures.
"""
FIGURES = """\
A ratio above 1 is in favour of Odradek, in every row. Figures are medians, with the
range of the rounds.

| Case | Unit | Kafka | Odradek | Ratio | CPU us/record Kafka | Odradek | CPU ratio |
| --- | --- | --: | --: | --: | --: | --: | --: |"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One case, measured several times on each broker."""

    case: Figure
    kafka: Sequence[Result]
    odradek: Sequence[Result]


def render(
    comparisons: Sequence[Comparison],
    *,
    kafka: Broker,
    odradek: Broker,
    machine: Mapping[str, str],
    footprints: Mapping[str, tuple[float, float]],
    command: str,
    load_average: float,
) -> str:
    """The page of `make bench`. `footprints` has idle memory (MiB) and idle CPU (%) by broker."""
    rounds = max((len(comparison.kafka) for comparison in comparisons), default=0)
    lines = [INTRODUCTION.format(rounds=rounds)]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    lines += [
        f"| load average before | {load_average:.1f} |",
        f"| Kafka | {kafka.version} |",
        f"| Odradek | {odradek.version} |",
        f"| command | `{command}` |",
        "",
        "## Throughput and latency",
        "",
        FIGURES,
    ]
    lines += [_row(comparison) for comparison in comparisons]
    lines += ["", "## Footprint", "", "| | Kafka | Odradek |", "| --- | --: | --: |"]
    first, second = footprints[kafka.name], footprints[odradek.name]
    lines += [
        f"| start to first answered Metadata | {kafka.start_seconds:.2f} s "
        f"| {odradek.start_seconds:.2f} s |",
        f"| memory when idle (PSS), before the load | {first[0]:.0f} MiB | {second[0]:.0f} MiB |",
        f"| processor when idle | {first[1]:.1f} % | {second[1]:.1f} % |",
        "",
    ]
    return "\n".join(lines)


def render_page(
    introduction: str,
    comparisons: Sequence[Comparison],
    *,
    versions: Mapping[str, str],
    machine: Mapping[str, str],
    command: str,
    load_average: float,
) -> str:
    """A page that begins with `introduction`. `versions` has the version of each broker by name."""
    lines = [introduction, "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in {**machine, **versions}.items()]
    lines += [f"| load average before | {load_average:.1f} |", f"| command | `{command}` |", ""]
    lines += [FIGURES]
    lines += [_row(comparison) for comparison in comparisons]
    return "\n".join([*lines, ""])


def ratio(case: Figure, kafka: Sequence[Result], odradek: Sequence[Result]) -> float:
    """Odradek's median relative to Kafka's; above 1 is better."""
    theirs = statistics.median(result.value for result in kafka)
    ours = statistics.median(result.value for result in odradek)
    return theirs / ours if case.is_lower_better else ours / theirs


def cpu_ratio(kafka: Sequence[Result], odradek: Sequence[Result]) -> float | None:
    """Kafka's median CPU a record relative to Odradek's; above 1 is better. None if unknown."""
    theirs, ours = _median_cpu(kafka), _median_cpu(odradek)
    return theirs / ours if theirs is not None and ours else None


def _row(comparison: Comparison) -> str:
    case = comparison.case
    cpu = [_median_cpu(results) for results in (comparison.kafka, comparison.odradek)]
    compared = cpu_ratio(comparison.kafka, comparison.odradek)
    cells = [
        case.name,
        case.unit,
        _spread([result.value for result in comparison.kafka]),
        _spread([result.value for result in comparison.odradek]),
        f"**{ratio(case, comparison.kafka, comparison.odradek):.2f}**",
        *(f"{value:.2f}" if value is not None else "-" for value in cpu),
        f"{compared:.2f}" if compared is not None else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def _median_cpu(results: Sequence[Result]) -> float | None:
    told = [each.cpu_us_per_record for each in results if each.cpu_us_per_record is not None]
    return statistics.median(told) if told else None


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return f"{_number(middle)} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"

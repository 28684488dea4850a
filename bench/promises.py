"""The figures that Odradek promises, in one table.

`make bench*` compares its rows with them and exits with 1 if one falls short. Tests assert the same
figures times SLACK, because the machine runs other things as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import click

SLACK: Final = 3
"""The factor that tests on a busy machine allow."""

START_S: Final = 1.0
"""From the start of a node to its first answered Metadata."""
IDLE_MEMORY_MIB: Final = 160.0
IDLE_CPU: Final = 0.01
"""Of one core."""
WORKER_KILL_GAP_S: Final = 1.0
"""The longest time without an acknowledgement after SIGKILL of a worker."""
LEADER_KILL_GAP_S: Final = 1.5
"""The same after SIGKILL of all processes of a partition leader's node."""
NEW_CONTROLLER_S: Final = 1.5
"""From SIGKILL of the active controller's node to the next decision."""
CONTROLLER_HANDOVER_S: Final = 0.5
"""The same after SIGTERM, which needs no election timeout."""
ROUTER_KILL_HEARTBEAT_S: Final = 2.0
"""From SIGKILL of a group coordinator's router to the next answered heartbeat."""
HEARTBEAT_CPU_US: Final = 100.0
"""Of routers and workers for a heartbeat of a stable group (KIP-848)."""
PARTITIONS_CREATED_S: Final = 30.0
"""For 10,000 partitions, until Metadata has all leaders."""
PARTITIONS_RESTART_S: Final = 5.0
"""For a node with 10,000 partitions, until Metadata has all leaders."""
IDLE_CONSUMERS_CPU: Final = 0.10
"""In percent of one core, for 2,000 consumers in long polls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A bound on one row: at most `most`, or at least `least`. A ratio is our median relative to
    Kafka's; above 1 is better."""

    most: float | None = None
    least: float | None = None
    unit: str = "times Kafka"

    def is_kept(self, value: float) -> bool:
        """Whether the measured value is within the bound."""
        return (self.most is None or value <= self.most) and (
            self.least is None or value >= self.least
        )

    def text(self) -> str:
        """`at most 1 s`."""
        bound = f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"
        return f"{bound} {self.unit}"


def _seconds(most: float) -> Promise:
    return Promise(most=most, unit="s")


def _ratio(least: float) -> Promise:
    return Promise(least=least)


def cpu_row(case: str) -> str:
    """The row of the CPU a record that a case takes in the broker."""
    return f"{case}: CPU"


_PRODUCE_TO_CONSUME = _ratio(1.0)
_CONNECTOR = Promise(least=1.0, unit="times the stock connector's")
PROMISES: Final[Mapping[str, Promise]] = {
    # make bench
    "produce 100 B, 1 record a request, 1 in flight, 1 partition": _ratio(0.5),
    "produce 100 B, 1 record a request, 5 in flight, 1 partition": _ratio(1.2),
    "produce 100 B, 1 record a request, 20 in flight, 6 partitions": _ratio(1.6),
    "produce 1024 B, 16 records a request, 5 in flight, 1 partition": _ratio(1.2),
    "produce 1024 B, 64 records a request, 5 in flight, 6 partitions": _ratio(1.5),
    "produce 1024 B, 250 records a request, 5 in flight, 1 partition": _ratio(1.5),
    "produce 1024 B, 900 records a request, 5 in flight, 1 partition": _ratio(1.3),
    "consume 1 KiB, 1 MiB a fetch, 1 partition": _ratio(1.5),
    "consume 1 KiB, 1 MiB a fetch, 6 partitions": _ratio(1.5),
    "produce to consume, acks=1, median": _PRODUCE_TO_CONSUME,
    "produce to consume, acks=all, median": _PRODUCE_TO_CONSUME,
    cpu_row("produce 100 B, 1 record a request, 1 in flight, 1 partition"): _ratio(1.0),
    cpu_row("produce 100 B, 1 record a request, 20 in flight, 6 partitions"): _ratio(2.5),
    "Kafka's Java producer, 1 record a request, 1 in flight": _ratio(1.0),
    "Kafka's Java producer, 1 record a request, 5 in flight": _ratio(1.2),
    "franz-go, 1 record a request, 1 in flight": _ratio(1.1),
    "franz-go, 1 record a request, 5 in flight": _ratio(1.4),
    cpu_row("franz-go, 1 record a request, 1 in flight"): _ratio(1.0),
    "librdkafka, 1 record a request, 1 in flight": _ratio(1.1),
    "librdkafka, 1 record a request, 5 in flight": _ratio(1.5),
    "Kafka's Java producer, transactions of 100 ms": _ratio(1.2),
    cpu_row("librdkafka produce --records 300000"): _ratio(1.25),
    cpu_row("librdkafka, consume 1 KiB, 1 partition"): _ratio(2.0),
    cpu_row("librdkafka, consume 100 B, 6 partitions"): _ratio(2.0),
    cpu_row("Kafka's Java consumer, consume 1 KiB, 1 partition"): _ratio(2.0),
    cpu_row("Kafka's Java consumer, consume 100 B, 6 partitions"): _ratio(2.0),
    "start to first answered Metadata": _seconds(START_S),
    "memory when idle (PSS)": Promise(most=IDLE_MEMORY_MIB, unit="MiB"),
    "processor when idle": Promise(most=100 * IDLE_CPU, unit="%"),
    # make bench-cluster
    "the leader's node is killed: longest gap between acknowledgements": _seconds(
        LEADER_KILL_GAP_S
    ),
    "each node is restarted in turn: longest gap between acknowledgements": _ratio(1.0),
    # make bench-coordinators
    "transactions of 1 record, one producer": _ratio(2.0),
    "transactions of 100 records, one producer": _ratio(1.5),
    # make bench-node
    "a worker is killed: longest gap between acknowledgements": _seconds(WORKER_KILL_GAP_S),
    "a router is killed: time until a heartbeat is answered": _seconds(ROUTER_KILL_HEARTBEAT_S),
    "a heartbeat of a stable group (KIP-848): CPU": Promise(most=HEARTBEAT_CPU_US, unit="us"),
    "2,000 consumers in long polls of 500 ms: CPU": Promise(most=5.0, unit="% of a core"),
    # make bench-pipeline
    "Spark reads 1,000,000 records of 1000 B: rows/s": _CONNECTOR,
    "Spark reads 1,000,000 records of 1000 B: CPU": _CONNECTOR,
    "Spark reads 3,000,000 records of 100 B: rows/s": Promise(least=1.3, unit=_CONNECTOR.unit),
}


def shortfalls(measured: Mapping[str, float]) -> list[str]:
    """A line for each row that falls short of its promise. Rows without a promise do not count."""
    return [
        f"{row}: {value:.2f}, promised {promise.text()}"
        for row, value in measured.items()
        if (promise := PROMISES.get(row)) is not None and not promise.is_kept(value)
    ]


def check(measured: Mapping[str, float]) -> None:
    """Print the rows that fall short, and exit with 1 if there are any."""
    short = shortfalls(measured)
    for line in short:
        click.echo(f"bench: falls short: {line}", err=True)
    if short:
        raise SystemExit(1)

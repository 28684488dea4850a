"""`odradek group lag` and `odradek group wait`: how far groups are behind, and waiting until they
are not.

In records, bytes and time, for every kind of group, also Empty ones: the coordinator says what is
committed, the leaders what lies behind that.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.findings import no_reader_reasons
from odradek.node.cli.group_queries import (
    GroupDescription,
    GroupQueries,
    Lag,
    is_odradek_cluster,
)
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, Row, size_text
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET

POLL_S: Final = 0.2
"""Between two looks at a group that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Where a group stands in one partition; `committed` is None where it has committed nothing."""

    group: str
    partition_id: PartitionId
    committed: int | None
    lag: Lag
    counted: int = -1
    """The group's own count of records before it, if it has one."""

    @property
    def records(self) -> int | None:
        """Records before the group, None where that cannot be said."""
        if self.counted >= 0:
            return self.counted
        return None if self.lag.error_code or self.lag.records < 0 else self.lag.records

    @property
    def seconds(self) -> float | None:
        """The age of the first of them; 0 if there is none."""
        return None if self.lag.error_code or self.lag.lag_ms < 0 else self.lag.lag_ms / 1000


def partition_lags(
    facts: GroupQueries,
    groups: Iterable[GroupDescription],
    topics: frozenset[str] = frozenset(),
    *,
    waits_for_leaders: bool = True,
) -> list[PartitionLag]:
    """Where the groups stand in every partition of the topics that they read, or of those named.

    Share groups count for themselves what they have before them: some is done behind their start.
    """
    groups = list(groups)
    facts.fetch_metadata({topic for group in groups for topic in group.topics()} | topics)
    asked: list[tuple[str, PartitionId, int]] = []
    for group in groups:
        commits = group.commits()
        wanted = topics or frozenset(group.topics())
        partition_ids = {
            partition_id for partition_id in facts.partitions if partition_id[0] in wanted
        }
        partition_ids |= {partition_id for partition_id in commits if partition_id[0] in wanted}
        asked += (
            (group.name, partition_id, commits.get(partition_id, NO_OFFSET))
            for partition_id in sorted(partition_ids)
        )
    found = facts.lag(
        ((partition_id, offset) for _, partition_id, offset in asked),
        waits_for_leaders=waits_for_leaders,
    )
    counted = {
        (group.name, partition_id): count
        for group in groups
        for partition_id, (_, count) in group.share.items()
    }
    return [
        PartitionLag(
            group=name,
            partition_id=partition_id,
            committed=None if offset < 0 else offset,
            lag=found[partition_id, offset],
            counted=counted.get((name, partition_id), -1),
        )
        for name, partition_id, offset in asked
    ]


def lag_row(partition_lag: PartitionLag) -> dict[str, Json]:
    """A partition's line."""
    lag = partition_lag.lag
    is_known = not lag.error_code
    return {
        "group": partition_lag.group,
        "topic": partition_lag.partition_id[0],
        "partition": partition_lag.partition_id[1],
        "committed": partition_lag.committed,
        "end_offset": lag.high_watermark if is_known else None,
        "lag": partition_lag.records,
        "bytes": lag.bytes if partition_lag.records is not None else None,
        "seconds": partition_lag.seconds if partition_lag.records is not None else None,
        "lost": lag.lost_records if is_known else None,
        "is_estimate": lag.is_estimate,
        "error": None if is_known else ErrorCode(lag.error_code).message,
    }


def sum_lags(rows: Iterable[dict[str, Json]], keys: tuple[str, ...]) -> list[Row]:
    """Lines with the same keys as one: lag and bytes add up, of the times the longest counts.

    Where none of them is known, because nothing is committed, the sum is not known either: 0 would
    say that all has been read.
    """
    sums: dict[tuple[Json, ...], dict[str, Json]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        known = sums.setdefault(
            key, {name: row[name] for name in keys} | dict.fromkeys(("lag", "bytes", "seconds"))
        )
        for name in ("lag", "bytes", "seconds"):
            value, total = row[name], known[name]
            if total is None:
                known[name] = value
            elif isinstance(value, int | float) and isinstance(total, int | float):
                known[name] = max(total, value) if name == "seconds" else total + value
    return list(sums.values())


@click.command("lag")
@click.argument("names", nargs=-1, shell_complete=complete_group, metavar="[GROUP...]")
@click.option("--all", "is_all", is_flag=True, help="Every group of the cluster.")
@click.option(
    "--by",
    type=click.Choice(["group", "topic", "partition"]),
    help="One line per value.  [default: partition; group with --all]",
)
@click.option("--topic", "-t", "topics", multiple=True, help="Only this topic.")
@with_client
def lag(
    names: tuple[str, ...],
    is_all: bool,
    by: str | None,
    topics: tuple[str, ...],
    client: ClusterClient,
    output: Output,
) -> None:
    """Show how far groups are behind: in records, bytes and seconds.

    SECONDS is the age of the first record that was not read.
    """
    if bool(names) == is_all:
        raise click.UsageError("Name groups, or pass --all.")
    facts = GroupQueries(client)
    groups = facts.all_groups() if is_all else facts.existing_groups(names)
    rows = [lag_row(found) for found in partition_lags(facts, groups, frozenset(topics))]
    by = by or ("group" if is_all else "partition")
    if by == "partition":
        columns = ["group", "topic", "partition", "committed", "end_offset", "lag", "bytes"]
        columns += ["seconds"]
        columns += [name for name in ("lost", "error") if any(row[name] for row in rows)]
        output.rows(rows, columns, empty="Nothing is committed.")
        return
    keys = ("group",) if by == "group" else ("group", "topic")
    output.rows(
        sum_lags(rows, keys), [*keys, "lag", "bytes", "seconds"], empty="Nothing is committed."
    )


# -- wait -----------------------------------------------------------------------------------------


@click.command("wait")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option(
    "--lag",
    "lag_max",
    type=click.IntRange(min=0),
    help="Until it is at most this many records behind.  [default: 0]",
)
@click.option(
    "--lag-seconds",
    "seconds_max",
    type=click.FloatRange(min=0),
    help="Until it is at most this far behind in time.",
)
@click.option("--topic", "-t", "topics", multiple=True, help="In this topic only.")
@click.option(
    "--committed-only",
    is_flag=True,
    help="Leave out partitions in which nothing is committed; they count as unread otherwise.",
)
@with_client
def wait(
    name: str,
    lag_max: int | None,
    seconds_max: float | None,
    topics: tuple[str, ...],
    committed_only: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Wait until a group has caught up, for --timeout seconds at the most.

    Exits with 1 if it has not by then, and shows the partitions that are behind. A group that does
    not exist yet is waited for.
    """
    if lag_max is None and seconds_max is None:
        lag_max = 0
    deadline = time.monotonic() + client.timeout_s
    waiting = LagMonitor(
        GroupQueries(client), name, frozenset(topics), is_committed_only=committed_only
    )
    with output.labelled_progress(f"Waiting for {name}", 0) as show:
        while True:
            now = waiting.look()
            if now is not None and _is_reached(now, lag_max, seconds_max):
                break
            left = sum(found.records or 0 for found in now or ())
            words = f"{name}: {left} records behind" if now else f"{name}: no commits yet"
            if unknown := sum(found.records is None for found in now or ()):
                words += f", and {unknown} partitions have no leader"
            done = max(waiting.records_peak - left, 0)
            show(done, waiting.records_peak, words)
            if time.monotonic() >= deadline:
                raise click.ClickException(waiting.timeout_message(client.timeout_s))
            time.sleep(POLL_S)
    records = sum(found.records or 0 for found in now)
    seconds = max((found.seconds or 0.0 for found in now), default=0.0)
    output.done(
        f"{name} is {records} records and {seconds:.1f} s behind",
        {"group": name, "lag": records, "seconds": seconds},
    )


def _is_reached(found: list[PartitionLag], lag_max: int | None, seconds_max: float | None) -> bool:
    if any(partition_lag.records is None for partition_lag in found):
        return False
    if lag_max is not None and sum(partition_lag.records or 0 for partition_lag in found) > lag_max:
        return False
    return seconds_max is None or all(
        partition_lag.seconds is not None and partition_lag.seconds <= seconds_max
        for partition_lag in found
        if partition_lag.records
    )


class LagMonitor:
    """A group that is waited for: where it stood at first, and where it stands now."""

    def __init__(
        self, facts: GroupQueries, name: str, topics: frozenset[str], *, is_committed_only: bool
    ) -> None:
        self._facts = facts
        self._name = name
        self._topics = topics
        self._is_committed_only = is_committed_only
        self._first: dict[PartitionId, PartitionLag] = {}
        self._last: list[PartitionLag] = []
        self._group: GroupDescription | None = None
        self.records_peak = 0
        """The most records that it was behind."""

    def look(self) -> list[PartitionLag] | None:
        """Where it stands; None if it reads nothing yet."""
        [group] = self._facts.groups([self._name])
        if group.explained.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        if group.explained.error_code:
            message = group.explained.error_message or ErrorCode(group.explained.error_code).message
            raise click.ClickException(f"group {self._name}: {message}")
        self._group = group
        found = partition_lags(self._facts, [group], self._topics, waits_for_leaders=False)
        blank = [partition_lag for partition_lag in found if partition_lag.committed is None]
        found = [partition_lag for partition_lag in found if partition_lag.committed is not None]
        if not self._is_committed_only:
            # What was never committed is unread from its beginning on.
            partition_ids = ((partition_lag.partition_id, 0) for partition_lag in blank)
            ends = self._facts.lag(partition_ids, waits_for_leaders=False)
            found += (replace(s, lag=without_lost_records(ends[s.partition_id, 0])) for s in blank)
        self._last = found
        for partition_lag in found:
            self._first.setdefault(partition_lag.partition_id, partition_lag)
        self.records_peak = max(
            self.records_peak, sum(partition_lag.records or 0 for partition_lag in found)
        )
        return found or None

    def timeout_message(self, timeout_s: float) -> str:
        """What stood still, and why as far as that is known."""
        if self._group is None:
            return f"group {self._name} did not exist within {timeout_s:g} s"
        if not self._last:
            return f"group {self._name} has committed nothing within {timeout_s:g} s"
        behind = [partition_lag for partition_lag in self._last if partition_lag.records != 0]
        lines = [f"{self._name} has not caught up within {timeout_s:g} s"]
        for partition_lag in behind[:10]:
            before = self._first[partition_lag.partition_id].committed
            moved = (
                "nothing is committed"
                if partition_lag.committed is None
                else f"offset {partition_lag.committed} since the wait began"
                if partition_lag.committed == before
                else f"moved from {before} to {partition_lag.committed}"
            )
            topic, index = partition_lag.partition_id
            size = (
                "" if partition_lag.records is None else f", {size_text(partition_lag.lag.bytes)}"
            )
            count = (
                "an unknown number of" if partition_lag.records is None else partition_lag.records
            )
            lines.append(f"{topic}-{index}: {count} records behind{size}; {moved}")
        if len(behind) > len(lines[1:]):
            lines.append(f"and {len(behind) - 10} more partitions")
        lines += no_reader_reasons(self._group.explained)
        lines.append(f"`odradek group explain {self._name}` shows more")
        return "\n  ".join(lines)


def without_lost_records(lag: Lag) -> Lag:
    """The lag of who has committed nothing: what retention has taken was not lost by it."""
    lag.lost_records = 0
    return lag


def add_lag_columns(client: ClusterClient, documents: Iterable[dict[str, Json]]) -> bool:
    """Add bytes and seconds to the committed offsets in descriptions of groups; False where the
    brokers cannot tell."""
    if not is_odradek_cluster(client):
        return False
    rows = [
        row
        for document in documents
        if isinstance(offsets := document["offsets"], list)
        for row in offsets
        if isinstance(row, dict)
    ]
    wanted = {
        ((row["topic"], row["partition"]), row["committed"])
        for row in rows
        if row["committed"] is not None
    }
    found = GroupQueries(client).lag(sorted(wanted), waits_for_leaders=False)
    for row in rows:
        partition_id = row["topic"], row["partition"]
        lag = found.get((partition_id, row["committed"]))
        is_known = lag is not None and not lag.error_code
        row["bytes"] = lag.bytes if lag is not None and is_known else None
        row["seconds"] = (
            lag.lag_ms / 1000 if lag is not None and is_known and lag.lag_ms >= 0 else None
        )
    return True

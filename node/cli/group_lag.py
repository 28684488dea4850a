"""`odradek group lag` and `odradek group wait`: the lag of groups, and waiting until it is small.

In records, bytes and seconds, for groups of every type, also empty ones: the coordinator reports
the committed offsets, and partition leaders the lag behind them.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.findings import no_reader_reasons
from odradek.node.cli.group_queries import GroupDescription, GroupQueries, Lag, is_odradek_cluster
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, Row, size_text
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET

POLL_S: Final = 0.2
"""Between two requests for the lag of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The lag of a group in one partition; `committed` is None if nothing is committed."""

    group: str
    partition_id: PartitionId
    committed: int | None
    lag: Lag
    counted: int = -1
    """The lag that a share group itself reports, or -1."""

    @property
    def records(self) -> int | None:
        """The lag in records, None if it is not known."""
        if self.counted >= 0:
            return self.counted
        return None if self.lag.error_code or self.lag.records < 0 else self.lag.records

    @property
    def seconds(self) -> float | None:
        """The age of the first unread record; 0 if there is none."""
        return None if self.lag.error_code or self.lag.lag_ms < 0 else self.lag.lag_ms / 1000


def partition_lags(
    queries: GroupQueries,
    groups: Iterable[GroupDescription],
    topics: frozenset[str] = frozenset(),
    *,
    waits_for_leaders: bool = True,
) -> list[PartitionLag]:
    """The lag of the groups in every partition of the topics that they read, or of those named.

    Share groups report their own lag: some records after their start offsets are acknowledged.
    """
    groups = list(groups)
    queries.fetch_metadata({topic for group in groups for topic in group.topics()} | topics)
    positions: list[tuple[GroupDescription, PartitionId, int]] = []
    for group in groups:
        commits = group.commits()
        wanted = topics or frozenset(group.topics())
        partition_ids = {each for each in (*queries.partitions, *commits) if each[0] in wanted}
        positions += ((group, each, commits.get(each, NO_OFFSET)) for each in sorted(partition_ids))
    lags = queries.lag(
        ((partition_id, offset) for _, partition_id, offset in positions),
        waits_for_leaders=waits_for_leaders,
    )
    return [
        PartitionLag(
            group=group.name,
            partition_id=partition_id,
            committed=None if offset < 0 else offset,
            lag=lags[partition_id, offset],
            counted=group.share.get(partition_id, (offset, -1))[1],
        )
        for group, partition_id, offset in positions
    ]


def group_lags(queries: GroupQueries, groups: Iterable[GroupDescription]) -> dict[Json, Row]:
    """The lag of each group as a row, by name. Partitions without a leader are not waited for."""
    rows = map(lag_row, partition_lags(queries, groups, waits_for_leaders=False))
    return {row["group"]: row for row in sum_lags(rows, ("group",))}


def lag_row(partition_lag: PartitionLag) -> dict[str, Json]:
    """The row of a partition."""
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
    """One row for the rows with the same keys: the sums of lag and bytes, the maximum of seconds.

    They are None if none of them is known because nothing is committed: 0 would mean that all has
    been read.
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
    queries = GroupQueries(client)
    groups = queries.all_groups() if is_all else queries.existing_groups(names)
    rows = [lag_row(found) for found in partition_lags(queries, groups, frozenset(topics))]
    by = by or ("group" if is_all else "partition")
    if by == "partition":
        columns = [
            "group",
            "topic",
            "partition",
            "committed",
            "end_offset",
            "lag",
            "bytes",
            "seconds",
        ]
        columns += [name for name in ("lost", "error") if any(row[name] for row in rows)]
        output.rows(rows, columns, empty="Nothing is committed.")
        return
    keys = ("group",) if by == "group" else ("group", "topic")
    output.rows(sum_lags(rows, keys), empty="Nothing is committed.")


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
    # A request that begins shortly before the deadline is answered as any other.
    client.time_each_answer()
    monitor = LagMonitor(client, name, frozenset(topics), is_committed_only=committed_only)
    with output.labelled_progress(f"Waiting for {name}", 0) as show:
        while True:
            lags = monitor.fetch()
            if lags and _is_reached(lags, lag_max, seconds_max):
                break
            records = sum(lag.records or 0 for lag in lags)
            text = f"{name}: {records} records behind" if lags else f"{name}: no commits yet"
            if unknown := sum(lag.records is None for lag in lags):
                text += f", and {unknown} partitions have no leader"
            show(max(monitor.records_peak - records, 0), monitor.records_peak, text)
            if time.monotonic() >= deadline:
                raise click.ClickException(monitor.timeout_message(client.connection.timeout_s))
            time.sleep(POLL_S)
    records = sum(lag.records or 0 for lag in lags)
    seconds = max(lag.seconds or 0.0 for lag in lags)
    output.done(
        f"{name} is {records} records and {seconds:.1f} s behind",
        {"group": name, "lag": records, "seconds": seconds},
    )


def _is_reached(lags: list[PartitionLag], lag_max: int | None, seconds_max: float | None) -> bool:
    if any(lag.records is None for lag in lags):
        return False
    if lag_max is not None and sum(lag.records or 0 for lag in lags) > lag_max:
        return False
    return seconds_max is None or all(
        lag.seconds is not None and lag.seconds <= seconds_max for lag in lags if lag.records
    )


class LagMonitor:
    """The lag of the group that `group wait` waits for: at first, at most and now."""

    def __init__(
        self, client: ClusterClient, name: str, topics: frozenset[str], *, is_committed_only: bool
    ) -> None:
        self._queries = GroupQueries(client)
        self._name = name
        self._topics = topics
        self._is_committed_only = is_committed_only
        self._committed_first: dict[PartitionId, int | None] = {}
        self._last: list[PartitionLag] = []
        self._group: GroupDescription | None = None
        self.records_peak = 0
        """The largest lag so far, in records."""

    def fetch(self) -> list[PartitionLag]:
        """The lag now; empty if the group does not exist or has committed nothing."""
        [group] = self._queries.groups([self._name])
        if group.explained.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return []
        raise_on_error(group.explained, f"group {self._name}")
        self._group = group
        lags = partition_lags(self._queries, [group], self._topics, waits_for_leaders=False)
        self._last = [lag for lag in lags if lag.committed is not None]
        if not self._is_committed_only:
            # A partition without a commit is unread from its start.
            starts = {(lag.partition_id, 0): lag for lag in lags if lag.committed is None}
            unread = self._queries.lag(starts, waits_for_leaders=False)
            self._last += (replace(lag, lag=unread[at]) for at, lag in starts.items())
        for lag in self._last:
            self._committed_first.setdefault(lag.partition_id, lag.committed)
        self.records_peak = max(self.records_peak, sum(lag.records or 0 for lag in self._last))
        return self._last

    def timeout_message(self, timeout_s: float) -> str:
        """The partitions that are behind, and the reasons as far as they are known."""
        if self._group is None:
            return f"group {self._name} did not exist within {timeout_s:g} s"
        if not self._last:
            return f"group {self._name} has committed nothing within {timeout_s:g} s"
        behind = [lag for lag in self._last if lag.records != 0]
        lines = [
            f"{self._name} has not caught up within {timeout_s:g} s",
            *map(self._line, behind[:10]),
        ]
        if len(behind) > 10:
            lines.append(f"and {len(behind) - 10} more partitions")
        lines += no_reader_reasons(self._group.explained)
        lines.append(f"`odradek group explain {self._name}` shows more")
        return "\n  ".join(lines)

    def _line(self, lag: PartitionLag) -> str:
        first = self._committed_first[lag.partition_id]
        if lag.committed is None:
            moved = "nothing is committed"
        elif lag.committed == first:
            moved = f"offset {lag.committed} since the wait began"
        else:
            moved = f"moved from {first} to {lag.committed}"
        records = "an unknown number of records behind"
        if lag.records is not None:
            records = f"{lag.records} records behind, {size_text(lag.lag.bytes)}"
        topic, index = lag.partition_id
        return f"{topic}-{index}: {records}; {moved}"


def add_lag_columns(client: ClusterClient, documents: Iterable[dict[str, Json]]) -> bool:
    """Add bytes and seconds to the committed offsets in descriptions of groups; False if the
    brokers do not report them."""
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
    lags = GroupQueries(client).lag(sorted(wanted), waits_for_leaders=False)
    for row in rows:
        lag = lags.get(((row["topic"], row["partition"]), row["committed"]))
        is_known = lag is not None and not lag.error_code
        row["bytes"] = lag.bytes if lag is not None and is_known else None
        row["seconds"] = (
            lag.lag_ms / 1000 if lag is not None and is_known and lag.lag_ms >= 0 else None
        )
    return True

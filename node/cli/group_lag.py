"""`odradek group lag` and `odradek group wait`: the lag of groups, and waiting until it is small.

In records, bytes and seconds, for groups of every type, also empty ones: the coordinator reports
the committed offsets, and partition leaders the lag behind them. What lag is, is defined in
coordinator/group/offsets/lag.py. Also called by `group list`, `describe` and `explain`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import click

from odradek.coordinator.group.offsets.lag import LagSum, lag_positions
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.findings import no_reader_reasons
from odradek.node.cli.group_queries import (
    COMMITTED_OFFSET,
    LOG_START,
    SHARE_START,
    GroupDescription,
    GroupQueries,
    Lag,
    is_odradek_cluster,
)
from odradek.node.cli.not_found import TOPIC, not_found, not_found_text
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, size_text
from odradek.protocol.errors import ErrorCode

LAG_COLUMNS: Final = (
    "topic",
    "partition",
    "committed",
    "end_offset",
    "lag",
    "bytes",
    "seconds",
    "counted_from",
)
"""What descriptions of groups have of the row of a partition."""
POLL_S: Final = 0.2
"""Between two requests for the lag of a group."""


UNCOMMITTED_TEXT: Final = (
    "Where nothing is committed, the lag is counted from the start of the log: brokers do not know"
    " a consumer's auto.offset.reset."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The lag of a group in one partition; `committed` is None if nothing is committed."""

    group: str
    partition_id: PartitionId
    committed: int | None
    counted_from: str
    """What the group's position is: COMMITTED_OFFSET, SHARE_START, LOG_START, or the config
    share.auto.offset.reset with its value."""
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
    counts = Counter(topic for topic, _ in queries.partitions)
    positions: list[tuple[GroupDescription, PartitionId, int, int, str]] = []
    for group in groups:
        commits = {each: offset for each, offset in group.commits().items() if offset >= 0}
        read = [
            (partition_id, offset)
            for partition_id, offset in lag_positions(
                group.explained.topics, commits, counts.__getitem__
            )
            if not topics or partition_id[0] in topics
        ]
        starts = queries.starts(group, [each for each, offset in read if offset < 0])
        for partition_id, offset in read:
            known = SHARE_START if group.share else COMMITTED_OFFSET
            start, counted_from = starts.get(partition_id, (offset, known))
            positions.append((group, partition_id, offset, start, counted_from))
    lags = queries.lag(
        ((partition_id, start) for _, partition_id, _, start, _ in positions),
        waits_for_leaders=waits_for_leaders,
    )
    return [
        PartitionLag(
            group=group.name,
            partition_id=partition_id,
            committed=None if offset < 0 else offset,
            counted_from=counted_from,
            lag=lags[partition_id, start],
            counted=group.share.get(partition_id, (offset, -1))[1],
        )
        for group, partition_id, offset, start, counted_from in positions
    ]


def missing_topics(
    client: ClusterClient, topics: Iterable[str], lags: Iterable[PartitionLag]
) -> list[str]:
    """Which of the topics that `lags` is limited to do not exist. A group can still have committed
    offsets in a deleted one."""
    unread = sorted({*topics} - {lag.partition_id[0] for lag in lags})
    return [
        topic.name or ""
        for topic in client.metadata(unread).topics
        if topic.error_code
        in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
    ]


def group_lags(
    queries: GroupQueries, groups: Iterable[GroupDescription]
) -> dict[str, dict[str, Json]]:
    """The lag of each group as a row, by name. Partitions without a leader are not waited for."""
    groups = list(groups)
    lags = partition_lags(queries, groups, waits_for_leaders=False)
    rows = {row["group"]: row for row in sum_lags(lags, ("group",))}
    return {group.name: rows.get(group.name, NOTHING_READ) for group in groups}


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
        "counted_from": partition_lag.counted_from,
        "lost": lag.lost_records if is_known else None,
        "is_estimate": lag.is_estimate,
        "error": None if is_known else ErrorCode(lag.error_code).message,
    }


def sum_lag(lags: Iterable[PartitionLag]) -> LagSum:
    """The lag in all these partitions, but those that were deleted."""
    total = LagSum()
    for each in lags:
        records = each.records
        if records is not None:
            is_committed = each.counted_from != LOG_START
            total.add(records, each.lag.bytes, each.lag.lag_ms, is_committed=is_committed)
        elif each.lag.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            total.add_unknown()
    return total


def sum_lags(lags: Iterable[PartitionLag], keys: tuple[str, ...]) -> list[dict[str, Json]]:
    """One row for the partitions with the same keys, of "group" and "topic". Lag, bytes and seconds
    are None while the lag of a partition is not known."""
    by_key: dict[tuple[str, ...], list[PartitionLag]] = {}
    for each in lags:
        names = {"group": each.group, "topic": each.partition_id[0]}
        by_key.setdefault(tuple(names[key] for key in keys), []).append(each)
    return [
        {**dict(zip(keys, key, strict=True)), **sum_row(sum_lag(found))}
        for key, found in by_key.items()
    ]


def sum_row(total: LagSum) -> dict[str, Json]:
    """The values of a sum as columns."""
    is_known = total.is_known
    seconds = 0.0 if not total.records else None if total.lag_ms < 0 else total.lag_ms / 1000
    return {
        "lag": total.records if is_known else None,
        "bytes": total.bytes if is_known else None,
        "seconds": seconds if is_known else None,
        "uncommitted_partitions": total.uncommitted_count,
        "unknown_partitions": total.unknown_count,
    }


NOTHING_READ: Final = sum_row(LagSum())
"""The lag of a group that reads nothing."""


def remark_columns(rows: Iterable[Mapping[str, Json]]) -> list[str]:
    """The columns of sums that say what they leave open, where they do."""
    rows = list(rows)
    columns = ("uncommitted_partitions", "unknown_partitions")
    return [column for column in columns if any(row.get(column) for row in rows)]


def counted_from_column(rows: Iterable[Mapping[str, Json]]) -> list[str]:
    """The column that says where the lag of a partition is counted from, if one of them is not
    counted from a committed offset."""
    usual = (COMMITTED_OFFSET, None)
    return ["counted_from"] if any(row.get("counted_from") not in usual for row in rows) else []


def remark(rows: Iterable[Mapping[str, Json]]) -> str:
    """How a lag in these rows was counted, if not from committed offsets; "" otherwise."""
    rows = list(rows)
    is_from_start = any(
        row.get("counted_from") == LOG_START or row.get("uncommitted_partitions") for row in rows
    )
    return UNCOMMITTED_TEXT if is_from_start else ""


@click.command("lag", short_help="Show how far groups are behind.")
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

    The lag is what there is to read from the committed offset up to the high watermark, or from the
    start of the log where nothing is committed. SECONDS is the age of the first of these records.
    """
    if bool(names) == is_all:
        raise click.UsageError("Name groups, or pass --all.")
    queries = GroupQueries(client)
    groups = queries.all_groups() if is_all else queries.existing_groups(names)
    lags = partition_lags(queries, groups, frozenset(topics))
    for topic in missing_topics(client, topics, lags):
        raise not_found(client, TOPIC, topic)
    by = by or ("group" if is_all else "partition")
    if by == "partition":
        rows = [lag_row(found) for found in lags]
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
        columns += counted_from_column(rows)
        columns += [name for name in ("lost", "error") if any(row[name] for row in rows)]
        output.rows(rows, columns, empty="Nothing is read.")
    else:
        keys = ("group",) if by == "group" else ("group", "topic")
        rows = sum_lags(lags, keys)
        columns = [*keys, "lag", "bytes", "seconds", *remark_columns(rows)]
        output.rows(rows, columns, empty="Nothing is read.")
    if remark(rows):
        output.hint(remark(rows))


# -- wait -----------------------------------------------------------------------------------------


@click.command("wait", short_help="Wait until a group has caught up.")
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
    help="Leave out partitions in which nothing is committed; they count from the start of the log"
    " otherwise.",
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
            total = sum_lag(lags)
            text = f"{name}: {total.records} records behind" if lags else f"{name}: reads nothing"
            if total.unknown_count:
                text += f", and {total.unknown_count} partitions have no leader"
            show(max(monitor.records_peak - total.records, 0), monitor.records_peak, text)
            if time.monotonic() >= deadline:
                raise click.ClickException(monitor.timeout_message(client.connection.timeout_s))
            time.sleep(POLL_S)
    total = sum_lag(lags)
    seconds = max(total.lag_ms, 0) / 1000
    output.done(
        f"{name} is {total.records} records and {seconds:.1f} s behind",
        {
            "group": name,
            "lag": total.records,
            "seconds": seconds,
            "uncommitted_partitions": total.uncommitted_count,
        },
    )
    if total.records and total.uncommitted_count:
        output.hint(UNCOMMITTED_TEXT)


def _is_reached(lags: list[PartitionLag], lag_max: int | None, seconds_max: float | None) -> bool:
    total = sum_lag(lags)
    if not total.is_known or (lag_max is not None and total.records > lag_max):
        return False
    return seconds_max is None or all(
        lag.seconds is not None and lag.seconds <= seconds_max for lag in lags if lag.records
    )


class LagMonitor:
    """The lag of the group that `group wait` waits for: at first, at most and now."""

    def __init__(
        self, client: ClusterClient, name: str, topics: frozenset[str], *, is_committed_only: bool
    ) -> None:
        self._client = client
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
        """The lag now; empty if the group does not exist or reads nothing."""
        [group] = self._queries.groups([self._name])
        if group.explained.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return []
        raise_on_error(group.explained, f"group {self._name}")
        self._group = group
        lags = partition_lags(self._queries, [group], self._topics, waits_for_leaders=False)
        if self._is_committed_only:
            lags = [lag for lag in lags if lag.committed is not None]
        self._last = lags
        for lag in self._last:
            self._committed_first.setdefault(lag.partition_id, lag.committed)
        self.records_peak = max(self.records_peak, sum_lag(lags).records)
        return self._last

    def timeout_message(self, timeout_s: float) -> str:
        """The partitions that are behind, and the reasons as far as they are known."""
        if self._group is None:
            return f"group {self._name} did not exist within {timeout_s:g} s"
        if not self._last:
            missing = missing_topics(self._client, self._topics, self._last)
            reasons = [
                f"; {topic}: {not_found_text(self._client, TOPIC, topic)}" for topic in missing
            ]
            return f"group {self._name} has read nothing within {timeout_s:g} s{''.join(reasons)}"
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
            moved = f"nothing is committed, counted from: {lag.counted_from}"
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
    """Replace the lag in descriptions of groups, as any Kafka has it, by the one that `group lag`
    shows: with bytes and seconds, and in every partition that the group reads. False if the brokers
    do not report it."""
    if not is_odradek_cluster(client):
        return False
    by_name = {str(document["group"]): document for document in documents}
    queries = GroupQueries(client)
    groups = [group for group in queries.groups(by_name) if not group.explained.error_code]
    lags = partition_lags(queries, groups, waits_for_leaders=False)
    for group in groups:
        document = by_name[group.name]
        found = [lag for lag in lags if lag.group == group.name]
        offsets = document["offsets"]
        assert isinstance(offsets, list)
        rows = {(row["topic"], row["partition"]): row for row in offsets if isinstance(row, dict)}
        described: list[Json] = [
            {
                **dict.fromkeys(("member", "client", "host")),
                **rows.pop(lag.partition_id, {}),
                **{name: value for name, value in lag_row(lag).items() if name in LAG_COLUMNS},
            }
            for lag in found
        ]
        document["offsets"] = [*described, *rows.values()]
        document["total_lag"] = sum_row(sum_lag(found))["lag"]
    return True

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

from odradek.node.cli.client import Connection, with_connection
from odradek.node.cli.completion import complete_group
from odradek.node.cli.findings import why_nobody_reads
from odradek.node.cli.group_facts import NO_OFFSET, Facts, Group, Lag, Place, serves_ours
from odradek.node.cli.output import Json, Output, Row, size_text, with_output
from odradek.node.cli.session import Session
from odradek.protocol.errors import ErrorCode

POLL_S: Final = 0.2
"""Between two looks at a group that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a group stands in one partition; `committed` is None where it has committed nothing."""

    group: str
    place: Place
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


def standings(
    facts: Facts,
    groups: Iterable[Group],
    topics: frozenset[str] = frozenset(),
    *,
    is_patient: bool = True,
) -> list[Standing]:
    """Where the groups stand in every partition of the topics that they read, or of those named.

    Share groups count for themselves what they have before them: some is done behind their start.
    """
    groups = list(groups)
    facts.look_up({topic for group in groups for topic in group.topics()} | topics)
    asked: list[tuple[str, Place, int]] = []
    for group in groups:
        commits = group.commits()
        wanted = topics or frozenset(group.topics())
        places = {place for place in facts.partitions if place[0] in wanted}
        places |= {place for place in commits if place[0] in wanted}
        asked += ((group.name, place, commits.get(place, NO_OFFSET)) for place in sorted(places))
    found = facts.lag(((place, offset) for _, place, offset in asked), is_patient=is_patient)
    counted = {
        (group.name, place): count for group in groups for place, (_, count) in group.share.items()
    }
    return [
        Standing(
            group=name,
            place=place,
            committed=None if offset < 0 else offset,
            lag=found[place, offset],
            counted=counted.get((name, place), -1),
        )
        for name, place, offset in asked
    ]


def row_of(standing: Standing) -> dict[str, Json]:
    """A partition's line."""
    lag = standing.lag
    is_known = not lag.error_code
    return {
        "group": standing.group,
        "topic": standing.place[0],
        "partition": standing.place[1],
        "committed": standing.committed,
        "end_offset": lag.high_watermark if is_known else None,
        "lag": standing.records,
        "bytes": lag.bytes if standing.records is not None else None,
        "seconds": standing.seconds if standing.records is not None else None,
        "lost": lag.lost_records if is_known else None,
        "is_estimate": lag.is_estimate,
        "error": None if is_known else ErrorCode(lag.error_code).message,
    }


def summed(rows: Iterable[dict[str, Json]], keys: tuple[str, ...]) -> list[Row]:
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
    help="One line for each.  [default: partition; group with --all]",
)
@click.option("--topic", "-t", "topics", multiple=True, help="Only this topic.")
@with_connection
@with_output
def lag(
    names: tuple[str, ...],
    is_all: bool,
    by: str | None,
    topics: tuple[str, ...],
    connection: Connection,
    output: Output,
) -> None:
    """Show how far groups are behind: in records, bytes and seconds.

    SECONDS is the age of the first record that was not read.
    """
    if bool(names) == is_all:
        raise click.UsageError("Name groups, or say --all.")
    with Session(connection) as session:
        facts = Facts(session)
        groups = facts.all_groups() if is_all else facts.existing(names)
        rows = [row_of(found) for found in standings(facts, groups, frozenset(topics))]
    by = by or ("group" if is_all else "partition")
    if by == "partition":
        columns = ["group", "topic", "partition", "committed", "end_offset", "lag", "bytes"]
        columns += ["seconds"]
        columns += [name for name in ("lost", "error") if any(row[name] for row in rows)]
        output.rows(rows, columns, empty="Nothing is committed.")
        return
    keys = ("group",) if by == "group" else ("group", "topic")
    output.rows(
        summed(rows, keys), [*keys, "lag", "bytes", "seconds"], empty="Nothing is committed."
    )


# -- wait -----------------------------------------------------------------------------------------


@click.command("wait")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option(
    "--lag",
    "lag_max",
    type=click.IntRange(min=0),
    help="Until it is at most so many records behind.  [default: 0]",
)
@click.option(
    "--lag-seconds",
    "seconds_max",
    type=click.FloatRange(min=0),
    help="Until it is at most so far behind in time.",
)
@click.option("--topic", "-t", "topics", multiple=True, help="In this topic only.")
@click.option(
    "--committed-only",
    is_flag=True,
    help="Leave out partitions in which nothing is committed; they count as unread otherwise.",
)
@with_connection
@with_output
def wait(
    name: str,
    lag_max: int | None,
    seconds_max: float | None,
    topics: tuple[str, ...],
    committed_only: bool,
    connection: Connection,
    output: Output,
) -> None:
    """Wait until a group has caught up, for --timeout seconds at the most.

    Exits with 1 if it has not by then, and says what stands still. A group that does not exist yet
    is waited for.
    """
    if lag_max is None and seconds_max is None:
        lag_max = 0
    deadline = time.monotonic() + connection.timeout_s
    with Session(connection) as session:
        waiting = Waiting(Facts(session), name, frozenset(topics), is_committed_only=committed_only)
        with output.transfer(f"Waiting for {name}", 0) as show:
            while True:
                now = waiting.look()
                if now is not None and _is_reached(now, lag_max, seconds_max):
                    break
                left = sum(found.records or 0 for found in now or ())
                words = f"{name}: {left} records behind" if now else f"{name}: no commits yet"
                if unknown := sum(found.records is None for found in now or ()):
                    words += f", and {unknown} partitions have no leader to tell"
                done = max(waiting.most - left, 0)
                show(done, waiting.most, words)
                if time.monotonic() >= deadline:
                    raise click.ClickException(waiting.complaint(connection.timeout_s))
                time.sleep(POLL_S)
    records = sum(found.records or 0 for found in now)
    seconds = max((found.seconds or 0.0 for found in now), default=0.0)
    output.done(
        f"{name} is {records} records and {seconds:.1f} s behind",
        {"group": name, "lag": records, "seconds": seconds},
    )


def _is_reached(found: list[Standing], lag_max: int | None, seconds_max: float | None) -> bool:
    if any(standing.records is None for standing in found):
        return False
    if lag_max is not None and sum(standing.records or 0 for standing in found) > lag_max:
        return False
    return seconds_max is None or all(
        standing.seconds is not None and standing.seconds <= seconds_max
        for standing in found
        if standing.records
    )


class Waiting:
    """A group that is waited for: where it stood at first, and where it stands now."""

    def __init__(
        self, facts: Facts, name: str, topics: frozenset[str], *, is_committed_only: bool
    ) -> None:
        self._facts = facts
        self._name = name
        self._topics = topics
        self._is_committed_only = is_committed_only
        self._first: dict[Place, Standing] = {}
        self._last: list[Standing] = []
        self._group: Group | None = None
        self.most = 0
        """The most records that it was behind."""

    def look(self) -> list[Standing] | None:
        """Where it stands; None if it reads nothing yet."""
        [group] = self._facts.groups([self._name])
        if group.told.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        if group.told.error_code:
            message = group.told.error_message or ErrorCode(group.told.error_code).message
            raise click.ClickException(f"group {self._name}: {message}")
        self._group = group
        found = standings(self._facts, [group], self._topics, is_patient=False)
        blank = [standing for standing in found if standing.committed is None]
        found = [standing for standing in found if standing.committed is not None]
        if not self._is_committed_only:
            # What was never committed is unread from its beginning on.
            places = ((standing.place, 0) for standing in blank)
            ends = self._facts.lag(places, is_patient=False)
            found += (replace(s, lag=replace_lag(ends[s.place, 0])) for s in blank)
        self._last = found
        for standing in found:
            self._first.setdefault(standing.place, standing)
        self.most = max(self.most, sum(standing.records or 0 for standing in found))
        return found or None

    def complaint(self, timeout_s: float) -> str:
        """What stood still, and why as far as that is known."""
        if self._group is None:
            return f"there was no group {self._name} within {timeout_s:g} s"
        if not self._last:
            return f"group {self._name} has committed nothing within {timeout_s:g} s"
        behind = [standing for standing in self._last if standing.records != 0]
        lines = [f"{self._name} has not caught up within {timeout_s:g} s"]
        for standing in behind[:10]:
            before = self._first[standing.place].committed
            moved = (
                "nothing is committed"
                if standing.committed is None
                else f"stands at {standing.committed} since the wait began"
                if standing.committed == before
                else f"moved from {before} to {standing.committed}"
            )
            topic, index = standing.place
            size = "" if standing.records is None else f", {size_text(standing.lag.bytes)}"
            count = "an unknown number of" if standing.records is None else standing.records
            lines.append(f"{topic}-{index}: {count} records behind{size}; {moved}")
        if len(behind) > len(lines[1:]):
            lines.append(f"and {len(behind) - 10} more partitions")
        lines += why_nobody_reads(self._group.told)
        lines.append(f"`odradek group explain {self._name}` says more")
        return "\n  ".join(lines)


def replace_lag(lag: Lag) -> Lag:
    """The lag of who has committed nothing: what retention has taken was not lost by it."""
    lag.lost_records = 0
    return lag


def add_lag(connection: Connection, documents: Iterable[dict[str, Json]]) -> bool:
    """Add bytes and seconds to the committed offsets in descriptions of groups; False where the
    brokers cannot tell."""
    if not serves_ours(connection):
        return False
    rows = [
        row
        for document in documents
        if isinstance(offsets := document["offsets"], list)
        for row in offsets
        if isinstance(row, dict)
    ]
    with Session(connection) as session:
        wanted = {
            ((row["topic"], row["partition"]), row["committed"])
            for row in rows
            if row["committed"] is not None
        }
        found = Facts(session).lag(sorted(wanted), is_patient=False)
    for row in rows:
        place = row["topic"], row["partition"]
        lag = found.get((place, row["committed"]))
        is_known = lag is not None and not lag.error_code
        row["bytes"] = lag.bytes if lag is not None and is_known else None
        row["seconds"] = (
            lag.lag_ms / 1000 if lag is not None and is_known and lag.lag_ms >= 0 else None
        )
    return True

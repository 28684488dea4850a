"""Why a group or a partition does not move: findings, each a sentence and what to do about it.

Pure: made of what coordinators, leaders, whoever serves fetches and transactions' coordinators have
told. A finding is a fact that was seen, never a guess; what nobody knows is not said. What a pause
means to a client and what it means when an application does not poll look alike from outside, and
then both are named. Called by group_explain.py, topic_explain.py and group_lag.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from odradek.coordinator.group.events import EventKind
from odradek.node.cli.group_texts import WAIT_TEXTS, text_of
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    ExplainedGroup,
    ExplainedMember,
    ExplainedReader,
    ExplainedSharePartition,
    MemberProgress,
    RebalanceWait,
)

PartitionId: TypeAlias = tuple[str, int]

IDLE_MS: Final = 10_000
"""From then on a fetch is missing: clients fetch every half second by default."""
UNCOMMITTED_MS: Final = 30_000
"""From then on a commit is missing: clients commit every five seconds by default."""
OFTEN_MS: Final = 300_000
OFTEN_COUNT: Final = 5
"""So many rebalances within so long are too many."""
NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that explains why something stands still, or will."""

    about: str
    """What it is about: the group, or `topic-partition`."""
    what: str
    """A sentence."""
    advice: str = ""
    """What to do, as a sentence; empty if nothing need be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingTransaction:
    """A transaction behind which a partition's last stable offset stays; what is not known is
    None."""

    producer_id: int
    since_offset: int
    silent_ms: int
    transactional_id: str | None = None
    state: str | None = None
    age_ms: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as its leader and all who serve fetches of it see it; offsets are -1 if no leader
    could be asked."""

    partition_id: PartitionId
    leader: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    min_in_sync: int = 1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    readers: tuple[ExplainedReader, ...] = ()
    sharing: tuple[ExplainedSharePartition, ...] = ()
    """How share groups stand in it."""
    transaction: BlockingTransaction | None = None

    @property
    def name(self) -> str:
        """`topic-partition`."""
        return f"{self.partition_id[0]}-{self.partition_id[1]}"


# -- words ----------------------------------------------------------------------------------------


def duration_text(duration_ms: int) -> str:
    """`250 ms`, `12 s`, `3 min`, `5 h`, `9 d`: as precise as a sentence can bear."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if duration_ms >= 2 * unit_ms:
            return f"{duration_ms // unit_ms} {unit}"
    return f"{duration_ms} ms"


def member_text(member: ExplainedMember) -> str:
    """A member as a person knows it."""
    name = member.instance_id or member.client_id
    where = f"{name} at {member.client_host.lstrip('/')}" if name else ""
    return f"{member.member_id} ({where})" if where else member.member_id


def _named(texts: list[str]) -> str:
    shown = ", ".join(texts[:NAMED_MAX])
    return shown if len(texts) <= NAMED_MAX else f"{shown} and {len(texts) - NAMED_MAX} more"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


# -- groups ---------------------------------------------------------------------------------------


def no_reader_reasons(group: ExplainedGroup) -> list[str]:
    """Sentences about the group as a whole, for who waits for it."""
    if not group.members and group.group_state in ("Empty", "Dead"):
        return ["the group has no members: nobody reads"]
    if group.wait:
        return [f"the group is in {group.group_state}: it waits {text_of(WAIT_TEXTS, group.wait)}"]
    return []


def group_findings(group: ExplainedGroup, now_ms: int) -> list[Finding]:
    """What is to be said of the group as a whole and of its members."""
    return [
        Finding(about=group.group_id, what=what, advice=advice)
        for what, advice in _of_group(group, now_ms)
    ]


def _of_group(group: ExplainedGroup, now_ms: int) -> Iterator[tuple[str, str]]:
    if not group.members:
        then = ""
        if group.ttl_ms >= 0:
            then = f" It is ephemeral and goes {duration_text(group.ttl_ms)} after it became so."
        yield f"The group has no members: nobody reads.{then}", "Start its consumers."
    yield from _of_classic_rebalance(group, now_ms)
    yield from _of_reconciliation(group, now_ms)
    yield from _of_frequency(group, now_ms)


def _of_classic_rebalance(group: ExplainedGroup, now_ms: int) -> Iterator[tuple[str, str]]:
    if not group.wait:
        return
    since = duration_text(max(now_ms - group.since, 0))
    left = duration_text(max(group.deadline - now_ms, 0))
    late = [member for member in group.members if member.deadline >= 0]
    wait = text_of(WAIT_TEXTS, group.wait)
    if group.wait == RebalanceWait.INITIAL_REBALANCE_DELAY:
        yield (
            f"The group's first rebalance waits {left} more {wait}.",
            "Set group.initial.rebalance.delay.ms=0 on the broker where nobody else is to be"
            " waited for (the dev profile does).",
        )
    elif late:
        asked = "join" if group.wait == RebalanceWait.JOIN_GROUP else "ask for their assignments"
        yield (
            f"A rebalance began {since} ago and waits for {len(late)} of {len(group.members)}"
            f" members to {asked}: {_named([member_text(member) for member in late])}. Who has not"
            f" come in {left} is put out.",
            "See what their applications do between two polls: they come back with the next one,"
            " within max.poll.interval.ms.",
        )
    else:
        yield (
            f"A rebalance began {since} ago and waits {wait}; it is over in {left} at the latest.",
            "",
        )


def _of_reconciliation(group: ExplainedGroup, now_ms: int) -> Iterator[tuple[str, str]]:
    for member in group.members:
        if member.to_revoke:
            given = [
                f"{topic.name}-{index}" for topic in member.to_revoke for index in topic.partitions
            ]
            left = ""
            if member.deadline >= 0:
                left = f", and is put out in {duration_text(max(member.deadline - now_ms, 0))}"
            yield (
                f"{member_text(member)} has not given up {_named(given)} yet{left}; others wait"
                " for them.",
                "See what its application does between two polls, or in its callback for revoked"
                " partitions.",
            )
        elif member.state == MemberProgress.EPOCH_BEHIND and group.since >= 0:
            waited_ms = now_ms - group.since
            if waited_ms >= IDLE_MS:
                yield (
                    f"{member_text(member)} has not come for the assignment that was made"
                    f" {duration_text(waited_ms)} ago.",
                    "See whether it still runs; it is put out when its session ends.",
                )


def _of_frequency(group: ExplainedGroup, now_ms: int) -> Iterator[tuple[str, str]]:
    lately = [
        event
        for event in group.events
        if event.kind == EventKind.REBALANCE_STARTED and now_ms - event.at <= OFTEN_MS
    ]
    if len(lately) < OFTEN_COUNT:
        return
    expired = sum(
        event.kind == EventKind.MEMBER_EXPIRED
        for event in group.events
        if now_ms - event.at <= OFTEN_MS
    )
    advice = "Look at the reasons below."
    if expired:
        advice = (
            f"{expired} times a member had gone silent: look whether its process stalls, or raise"
            " session.timeout.ms."
        )
    yield (
        f"The group has rebalanced {len(lately)} times in {duration_text(OFTEN_MS)}, last because:"
        f" {lately[-1].reason}.",
        advice,
    )


def missing_topic_findings(missing: Iterable[str]) -> list[Finding]:
    """What is to be said of topics that a group subscribes to and nobody can see."""
    return [
        Finding(
            about=topic,
            what=f"The group subscribes to {topic}, and there is no such topic to be seen.",
            advice="Create it, or look at how its name is written.",
        )
        for topic in missing
    ]


# -- partitions -----------------------------------------------------------------------------------


def partition_findings(view: PartitionView) -> list[Finding]:
    """What is to be said of a partition, whoever reads it."""
    return [
        Finding(about=view.name, what=what, advice=advice) for what, advice in _of_partition(view)
    ]


def _of_partition(view: PartitionView) -> Iterator[tuple[str, str]]:
    if view.leader < 0:
        # With eligible leader replicas (KIP-966) nobody is left in sync.
        last = f", in sync was {_numbers(view.in_sync)} last" if view.in_sync else ""
        where = "replica is on broker" if len(view.replicas) == 1 else "replicas are on brokers"
        yield (
            f"{view.name} has no leader: nobody can read or write it. Its {where}"
            f" {_numbers(view.replicas)}{last}.",
            f"Start broker {_numbers(view.in_sync or view.replicas)}.",
        )
        return
    if view.high_watermark < 0:
        yield (
            f"Broker {view.leader}, which leads {view.name}, did not answer.",
            "See whether it runs.",
        )
        return
    missing = [replica for replica in view.replicas if replica not in view.in_sync]
    uncommitted = view.log_end_offset - view.high_watermark
    if len(view.in_sync) < view.min_in_sync:
        yield (
            f"{view.name} has {len(view.in_sync)} replicas in sync and needs {view.min_in_sync}"
            " (min.insync.replicas): producers with acks=all are refused"
            + (f", and {_records(uncommitted)} cannot be read yet." if uncommitted else "."),
            f"Start broker {_numbers(missing)}, or see why it does not catch up.",
        )
    yield from _of_transaction(view)
    for reader in view.readers:
        if reader.error_code and reader.idle_ms < IDLE_MS:
            yield _refused(view, reader)


def _numbers(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _of_transaction(view: PartitionView) -> Iterator[tuple[str, str]]:
    found = view.transaction
    if found is None:
        return
    behind = view.high_watermark - view.last_stable_offset
    who = f"producer {found.producer_id}"
    if found.transactional_id is not None:
        who = f"transaction {found.transactional_id!r} of {who}"
        if found.state is not None:
            who += f" ({found.state})"
    since = f"silent for {duration_text(found.silent_ms)}"
    if found.age_ms is not None:
        since = f"open for {duration_text(found.age_ms)}, {since}"
    if found.transactional_id is None:
        advice = (
            "No coordinator that answers knows it: if `odradek txn hanging` names it, end it with"
            f" `odradek txn abort {view.partition_id[0]} {view.partition_id[1]}"
            f" --start-offset {found.since_offset}`."
        )
    else:
        over = ""
        if found.age_ms is not None and found.timeout_ms is not None:
            left_ms = max(found.timeout_ms - found.age_ms, 0)
            over = f" It is aborted in {duration_text(left_ms)} if it does not."
        advice = f"Have its producer commit or abort.{over}"
    yield (
        f"Who reads committed records only stops at offset {view.last_stable_offset} of"
        f" {view.name}, {_records(behind)} before the end: {who} is {since}.",
        advice,
    )


def _refused(view: PartitionView, reader: ExplainedReader) -> tuple[str, str]:
    code = ErrorCode(reader.error_code)
    advice = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Allow its principal READ on the topic.",
        ErrorCode.OFFSET_OUT_OF_RANGE: (
            f"The log holds {view.log_start_offset} to {view.high_watermark}; it begins anew as its"
            " auto.offset.reset says."
        ),
    }.get(code, "")
    who = f"{reader.client_id} at {reader.client_host.lstrip('/')}"
    return (
        f"{who} asks for offset {reader.offset} of {view.name} and is refused: {code.name}.",
        advice,
    )


# -- a group in a partition -----------------------------------------------------------------------


def reader_findings(
    group: ExplainedGroup, views: Mapping[PartitionId, PartitionView], now_ms: int
) -> list[Finding]:
    """Why the group does not move on in partitions that have something for it."""
    if group.group_type == "share":
        return [
            Finding(about=view.name, what=what, advice=advice)
            for _, view in sorted(views.items())
            for sharing in view.sharing
            if sharing.group_id == group.group_id
            for what, advice in _of_sharing(group, view, sharing)
        ]
    owners = {
        (topic.name, index): member
        for member in group.members
        for topic in member.owned
        for index in topic.partitions
    }
    commits = {
        (topic.name, commit.partition_index): commit
        for topic in group.commits
        for commit in topic.partitions
    }
    findings: list[Finding] = []
    for partition_id, view in sorted(views.items()):
        commit = commits.get(partition_id)
        owner = owners.get(partition_id)
        if view.high_watermark < 0 or (commit is None and owner is None):
            continue
        offset = -1 if commit is None else commit.committed_offset
        at_ms = -1 if commit is None else commit.committed_at
        if commit is not None and commit.is_unstable:
            findings.append(
                Finding(
                    about=view.name,
                    what=f"A transaction may still change the group's offset in {view.name}:"
                    " consumers that begin here wait (UNSTABLE_OFFSET_COMMIT).",
                    advice="Have the transaction committed or aborted: `odradek txn list`.",
                )
            )
        findings += (
            Finding(about=view.name, what=what, advice=advice)
            for what, advice in _of_offset(view, offset)
        )
        if offset < view.high_watermark:
            findings += (
                Finding(about=view.name, what=what, advice=advice)
                for what, advice in _of_reader(group, view, owner, offset, at_ms, now_ms)
            )
    return findings


def _of_offset(view: PartitionView, offset: int) -> Iterator[tuple[str, str]]:
    if 0 <= offset < view.log_start_offset:
        lost = view.log_start_offset - offset
        yield (
            f"{_records(lost)} of {view.name} were deleted before the group read them: it stands"
            f" at {offset}, the log begins at {view.log_start_offset}.",
            "Keep records longer (retention.ms, retention.bytes), or read faster.",
        )
    if offset > view.log_end_offset:
        yield (
            f"The group stands at {offset} of {view.name}, beyond its end at"
            f" {view.log_end_offset}: its consumers begin anew as auto.offset.reset says.",
            "Set it right with `odradek group reset-offsets`.",
        )


def _of_reader(
    group: ExplainedGroup,
    view: PartitionView,
    owner: ExplainedMember | None,
    offset: int,
    at_ms: int,
    now_ms: int,
) -> Iterator[tuple[str, str]]:
    """Why a partition that has records for the group does not move."""
    if owner is None:
        if group.members and group.group_state == "Stable":
            yield (
                f"No member of the group owns {view.name}.",
                "See whether its members still subscribe to the topic.",
            )
        return
    who = member_text(owner)
    if owner.state == MemberProgress.STATIC_LEFT:
        yield (
            f"{view.name} is kept for {who}, a static member that has left for a while.",
            "Start it again; others get the partition when its session ends.",
        )
        return
    readings = [
        reader
        for reader in view.readers
        if (reader.client_id, reader.client_host) == (owner.client_id, owner.client_host)
    ]
    if not readings:
        yield (
            f"{who} owns {view.name} and does not fetch it.",
            "It may be paused, its application may not have polled since it got the partition, or"
            " its process is gone: it is put out then when its session ends.",
        )
        return
    newest = min(readings, key=lambda reader: reader.idle_ms)
    if newest.idle_ms >= IDLE_MS:
        idle = duration_text(newest.idle_ms)
        if newest.fetch_idle_ms < IDLE_MS:
            yield (
                f"{who} fetches other partitions, but has not fetched {view.name} for {idle}.",
                "It is paused there, or its application does not take what it was given before.",
            )
        else:
            yield (
                f"{who} has fetched nothing for {duration_text(newest.fetch_idle_ms)}.",
                "Its application does not poll, has paused all that it owns, or its process is"
                " gone or stands still: it is put out then when its session ends.",
            )
    elif newest.offset > max(offset, 0) and at_ms >= 0 and now_ms - at_ms >= UNCOMMITTED_MS:
        yield (
            f"{who} fetches {view.name} at offset {newest.offset}, but its last commit, of"
            f" {offset}, was {duration_text(now_ms - at_ms)} ago.",
            "It does not commit, or its application is still at work on what it was given.",
        )


# -- a share group in a partition -----------------------------------------------------------------


def _of_sharing(
    group: ExplainedGroup, view: PartitionView, sharing: ExplainedSharePartition
) -> Iterator[tuple[str, str]]:
    """What is under way between the share group's start and its end."""
    members = {member.member_id: member_text(member) for member in group.members}
    if sharing.acquired_count and not sharing.available_count:
        first = sharing.locks[0]
        who = members.get(first.member_id, first.member_id)
        span = f"offset {first.start_offset}"
        if first.end_offset - first.start_offset > 1:
            span = f"offsets {first.start_offset} to {first.end_offset - 1}"
        held = _records(sharing.acquired_count)
        yield (
            f"{view.name} has {held} in members' hands, the first in those of {who}: {span},"
            f" at delivery {first.delivery_count}, for {duration_text(first.left_ms)} more.",
            "They can be had again when they are released, or when the lock ends"
            " (share.record.lock.duration.ms).",
        )
    if sharing.delayed_count:
        resting = _records(sharing.delayed_count)
        yield f"{view.name} has {resting} resting before the next delivery.", ""
    if sharing.archiving_count:
        leaving = _records(sharing.archiving_count)
        yield (
            f"{view.name} has {leaving} on the way to the dead-letter topic.",
            "If that lasts, see whether the dead-letter topic can be written to.",
        )

"""Findings: why a group or a partition does not progress, and what to do.

Pure: computed from the responses of group coordinators, partition leaders, replicas and transaction
coordinators. A finding is an observed fact. Where two causes cannot be distinguished (a paused
partition, an application that does not poll), it names both. Called by group_explain.py,
topic_explain.py and group_lag.py.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from odradek.coordinator.group.events import EventKind
from odradek.node.cli.group_texts import WAIT_TEXTS, text_of
from odradek.node.cli.offsets import PartitionId, by_id, ids_of
from odradek.node.cli.output import first_names, size_text
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    ExplainedCommit,
    ExplainedGroup,
    ExplainedMember,
    ExplainedReader,
    ExplainedSharePartition,
    MemberProgress,
    RebalanceWait,
)

Advised: TypeAlias = tuple[str, str]
"""A fact and the operator's next step, both sentences; the next step may be empty."""

IDLE_MS: Final = 10_000
"""A client that has not fetched for this long is idle: clients fetch every 500 ms by default."""
UNCOMMITTED_MS: Final = 30_000
"""A client that has not committed for this long is late: clients commit every 5 s by default."""
MOVED_MS: Final = 2_000
"""A client that was refused because the leader moved asks again within retry.backoff.max.ms, 1 s by
default; after this it fetches elsewhere."""
OFTEN_MS: Final = 300_000
OFTEN_COUNT: Final = 5
"""More rebalances than this within OFTEN_MS are reported."""
_LEADER_MOVED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause that stops progress, or will stop it."""

    about: str
    """The group, the topic, or `topic-partition`."""
    what: str
    """The fact, as a sentence."""
    advice: str = ""
    """The operator's next step, as a sentence; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingTransaction:
    """The open transaction that holds back a partition's last stable offset; None where a value is
    not known."""

    producer_id: int
    since_offset: int
    silent_ms: int
    transactional_id: str | None = None
    state: str | None = None
    age_ms: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingArchive:
    """What retention keeps for the group of a topic's archive; offset -1: it has committed
    nothing."""

    group: str
    archived_offset: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as its leader and replicas report it; offsets are -1 if no leader answered."""

    partition_id: PartitionId
    leader: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    fenced: tuple[int, ...] = ()
    """The replicas on brokers that are fenced."""
    offline: tuple[int, ...] = ()
    """The replicas on other brokers that are in an offline log directory."""
    eligible: tuple[int, ...] = ()
    """Without a leader and an ISR: the replicas that may lead it, or the last ones that could."""
    min_in_sync: int = 1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    readers: tuple[ExplainedReader, ...] = ()
    sharing: tuple[ExplainedSharePartition, ...] = ()
    """The share groups that read it."""
    transaction: BlockingTransaction | None = None
    archive: WaitingArchive | None = None
    storage_problems: tuple[tuple[int, str], ...] = ()
    """Its brokers that cannot write their data, and why."""

    @property
    def name(self) -> str:
        """`topic-partition`."""
        return f"{self.partition_id[0]}-{self.partition_id[1]}"

    @property
    def out_of_sync(self) -> list[int]:
        """The replicas that are not in sync."""
        return [replica for replica in self.replicas if replica not in self.in_sync]

    @property
    def is_below_minimum(self) -> bool:
        """Whether writes with acks=all are refused for want of replicas in sync."""
        return self.leader >= 0 and len(self.in_sync) < self.min_in_sync


# -- texts ----------------------------------------------------------------------------------------


def duration_text(duration_ms: int) -> str:
    """`250 ms`, `12 s`, `3 min`, `5 h`, `9 d`: in the largest unit of which there are at least
    two."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if duration_ms >= 2 * unit_ms:
            return f"{duration_ms // unit_ms} {unit}"
    return f"{duration_ms} ms"


def member_text(member: ExplainedMember) -> str:
    """Member id, with instance or client id and host in parentheses."""
    name = member.instance_id or member.client_id
    where = f"{name} at {member.client_host.lstrip('/')}" if name else ""
    return f"{member.member_id} ({where})" if where else member.member_id


def _findings(about: str, facts: Iterable[Advised]) -> list[Finding]:
    return [Finding(about=about, what=what, advice=advice) for what, advice in facts]


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


# -- groups ---------------------------------------------------------------------------------------


def no_reader_reasons(group: ExplainedGroup) -> list[str]:
    """Why no member reads, for a command that waits for the group."""
    if not group.members and group.group_state in ("Empty", "Dead"):
        return ["the group has no members"]
    if group.wait:
        return [f"the group is {group.group_state}: it waits {text_of(WAIT_TEXTS, group.wait)}"]
    return []


def group_findings(group: ExplainedGroup, now_ms: int) -> list[Finding]:
    """Findings about the group as a whole and its members."""
    return _findings(group.group_id, _of_group(group, now_ms))


def _of_group(group: ExplainedGroup, now_ms: int) -> Iterator[Advised]:
    if not group.members:
        expiry = ""
        if group.ttl_ms >= 0:
            expiry = (
                f" It is ephemeral: deleted {duration_text(group.ttl_ms)} after it became empty."
            )
        yield f"The group has no members.{expiry}", "Start its consumers."
    yield from _of_classic_rebalance(group, now_ms)
    yield from _of_reconciliation(group, now_ms)
    yield from _of_frequency(group, now_ms)


def _of_classic_rebalance(group: ExplainedGroup, now_ms: int) -> Iterator[Advised]:
    if not group.wait:
        return
    since = duration_text(max(now_ms - group.since, 0))
    left = duration_text(max(group.deadline - now_ms, 0))
    late = [member for member in group.members if member.deadline >= 0]
    wait = text_of(WAIT_TEXTS, group.wait)
    if group.wait == RebalanceWait.INITIAL_REBALANCE_DELAY:
        yield (
            f"The first rebalance of the group waits {left} more {wait}.",
            "Set group.initial.rebalance.delay.ms=0 on the broker if no more members are expected"
            " (the dev profile does).",
        )
    elif late:
        asked = "join" if group.wait == RebalanceWait.JOIN_GROUP else "fetch their assignments"
        yield (
            f"A rebalance began {since} ago and waits for {len(late)} of {len(group.members)}"
            f" members to {asked}: {first_names(map(member_text, late))}. They are removed in"
            f" {left}.",
            "Check what their applications do between two polls: a member rejoins at its next poll."
            " max.poll.interval.ms bounds the time between polls.",
        )
    else:
        yield (
            f"A rebalance began {since} ago and waits {wait}; it is over in {left} at the latest.",
            "",
        )


def _of_reconciliation(group: ExplainedGroup, now_ms: int) -> Iterator[Advised]:
    for member in group.members:
        if member.to_revoke:
            revoked = [f"{topic}-{index}" for topic, index in ids_of(member.to_revoke)]
            left = ""
            if member.deadline >= 0:
                left = f", and is removed in {duration_text(max(member.deadline - now_ms, 0))}"
            yield (
                f"{member_text(member)} has not revoked {first_names(revoked)} yet{left}; other"
                " members wait for them.",
                "Check what its application does between two polls, or in its callback for revoked"
                " partitions.",
            )
        elif member.state == MemberProgress.EPOCH_BEHIND and group.since >= 0:
            waited_ms = now_ms - group.since
            if waited_ms >= IDLE_MS:
                yield (
                    f"{member_text(member)} has not fetched the assignment that was computed"
                    f" {duration_text(waited_ms)} ago.",
                    "Check whether it still runs; it is removed when its session times out.",
                )


def _of_frequency(group: ExplainedGroup, now_ms: int) -> Iterator[Advised]:
    recent = [event for event in group.events if now_ms - event.at <= OFTEN_MS]
    rebalances = [event for event in recent if event.kind == EventKind.REBALANCE_STARTED]
    if len(rebalances) < OFTEN_COUNT:
        return
    expired = sum(event.kind == EventKind.MEMBER_EXPIRED for event in recent)
    advice = "See the reasons in the events."
    if expired:
        advice = (
            f"Members expired {expired} times: check whether their processes stall, or raise"
            " session.timeout.ms."
        )
    yield (
        f"The group has rebalanced {len(rebalances)} times in {duration_text(OFTEN_MS)}, most"
        f" recently: {rebalances[-1].reason}.",
        advice,
    )


def missing_topic_findings(missing: Iterable[str]) -> list[Finding]:
    """Findings about topics that a group subscribes to and that do not exist or are hidden."""
    return [
        Finding(
            about=topic,
            what=f"The group subscribes to {topic}, which does not exist.",
            advice="Create the topic, or check its name.",
        )
        for topic in missing
    ]


# -- partitions -----------------------------------------------------------------------------------


def partition_findings(
    view: PartitionView, clients: Collection[tuple[str, str]] | None = None
) -> list[Finding]:
    """Findings about a partition and its readers: about those of `clients` (client id, host), or
    about all without it."""
    readers = [
        reader
        for reader in view.readers
        if clients is None or (reader.client_id, reader.client_host) in clients
    ]
    return _findings(view.name, _of_partition(view, readers))


def _of_partition(view: PartitionView, readers: Iterable[ExplainedReader]) -> Iterator[Advised]:
    if view.leader < 0:
        # With eligible leader replicas (KIP-966) the ISR may be empty.
        back = view.in_sync or view.eligible
        last = f"; last in sync: {_numbers(back)}" if back else ""
        where = "replica is on broker" if len(view.replicas) == 1 else "replicas are on brokers"
        yield (
            f"{view.name} has no leader: it can be neither read nor written. Its {where}"
            f" {_numbers(view.replicas)}{last}.",
            f"Start broker {_numbers(back or view.replicas)}.",
        )
        return
    if view.high_watermark < 0:
        yield (
            f"Broker {view.leader}, which leads {view.name}, did not answer.",
            "Check whether it runs.",
        )
        return
    missing = view.out_of_sync
    uncommitted = view.log_end_offset - view.high_watermark
    if view.is_below_minimum:
        yield (
            f"{view.name} has {len(view.in_sync)} replicas in sync and needs {view.min_in_sync}"
            " (min.insync.replicas): writes with acks=all are refused"
            + (f", and {_records(uncommitted)} cannot be read yet." if uncommitted else "."),
            f"Start broker {_numbers(missing)}, or find out why it does not catch up.",
        )
    yield from _of_transaction(view)
    yield from _of_archive(view)
    for reader in readers:
        recent_ms = MOVED_MS if reader.error_code in _LEADER_MOVED else IDLE_MS
        if reader.error_code and reader.idle_ms < recent_ms:
            yield _refused(view, reader)


def _numbers(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _of_transaction(view: PartitionView) -> Iterator[Advised]:
    found = view.transaction
    if found is None:
        return
    behind = view.high_watermark - view.last_stable_offset
    who = f"producer {found.producer_id}"
    if found.transactional_id is not None:
        state = "" if found.state is None else f" ({found.state})"
        who = f"transaction {found.transactional_id!r} of {who}{state}"
    since = f"silent for {duration_text(found.silent_ms)}"
    if found.age_ms is not None:
        since = f"open for {duration_text(found.age_ms)}, {since}"
    if found.transactional_id is None:
        advice = (
            "No coordinator knows it. If `odradek txn hanging` lists it, end it with"
            f" `odradek txn abort {view.partition_id[0]} {view.partition_id[1]}"
            f" --start-offset {found.since_offset}`."
        )
    else:
        advice = "Have its producer commit or abort."
        if found.age_ms is not None and found.timeout_ms is not None:
            left_ms = max(found.timeout_ms - found.age_ms, 0)
            advice += f" Otherwise it is aborted in {duration_text(left_ms)}."
    yield (
        f"Consumers with read_committed stop at offset {view.last_stable_offset} of {view.name},"
        f" {_records(behind)} before the end: {who} is {since}.",
        advice,
    )


def _of_archive(view: PartitionView) -> Iterator[Advised]:
    found = view.archive
    if found is None or not found.held_bytes:
        return
    where = f" at offset {found.archived_offset}"
    if found.archived_offset < 0:
        where = ", which has committed nothing"
    yield (
        f"Retention of {view.name} waits for group {found.group}{where}: it keeps"
        f" {size_text(found.held_bytes)} that would be deleted otherwise"
        " (odradek.archive.group).",
        f"Start the job that archives the topic; `odradek group explain {found.group}` says how far"
        " it is. Above odradek.archive.max.ms and odradek.archive.max.bytes records are deleted.",
    )


def _refused(view: PartitionView, reader: ExplainedReader) -> Advised:
    code = ErrorCode(reader.error_code)
    advice = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Allow its principal READ on the topic.",
        ErrorCode.OFFSET_OUT_OF_RANGE: (
            f"The log has offsets {view.log_start_offset} to {view.high_watermark}; the consumer"
            " resets by its auto.offset.reset."
        ),
    }.get(code, "")
    who = f"{reader.client_id} at {reader.client_host.lstrip('/')}"
    return (
        f"{who} fetches {view.name} at offset {reader.offset} and gets {code.name}.",
        advice,
    )


# -- a group in a partition -----------------------------------------------------------------------


def reader_findings(
    group: ExplainedGroup, views: Mapping[PartitionId, PartitionView], now_ms: int
) -> list[Finding]:
    """Why the group does not progress in partitions that have records for it."""
    owners = {
        partition_id: member for member in group.members for partition_id in ids_of(member.owned)
    }
    commits = by_id(group.commits)
    findings: list[Finding] = []
    for partition_id, view in sorted(views.items()):
        commit, owner = commits.get(partition_id), owners.get(partition_id)
        if group.group_type == "share":
            findings += _findings(view.name, _of_sharing(group, view))
        elif view.high_watermark >= 0 and (commit is not None or owner is not None):
            # As if committed at -1 where nothing is committed.
            commit = commit or ExplainedCommit(committed_offset=-1, committed_at=-1)
            findings += _findings(view.name, _of_offset(view, commit))
            if commit.committed_offset < view.high_watermark:
                findings += _findings(view.name, _of_reader(group, view, owner, commit, now_ms))
    if group.group_type != "share":
        findings += _findings(group.group_id, _of_uncommitted(views, owners, commits))
    return findings


def _of_uncommitted(
    views: Mapping[PartitionId, PartitionView],
    owners: Mapping[PartitionId, ExplainedMember],
    commits: Mapping[PartitionId, ExplainedCommit],
) -> Iterator[Advised]:
    """Members that have read records of partitions in which nothing is committed."""
    reading: dict[str, list[str]] = {}
    for partition_id, view in sorted(views.items()):
        owner, commit = owners.get(partition_id), commits.get(partition_id)
        if owner is None or view.high_watermark < 0:
            continue
        is_committed = commit is not None and commit.committed_offset >= 0
        if not is_committed and any(
            reader.offset > view.log_start_offset for reader in _readings(view, owner)
        ):
            reading.setdefault(member_text(owner), []).append(view.name)
    for who, names in reading.items():
        yield (
            f"{who} reads {first_names(names)}, and nothing is committed there: the group's lag is"
            " counted from the start of the log.",
            "Consumers commit every 5 s by default (auto.commit.interval.ms). If this stays, it"
            " does not commit, and starts again by its auto.offset.reset.",
        )


def _readings(view: PartitionView, owner: ExplainedMember) -> list[ExplainedReader]:
    """The fetches of a partition by the client of a member."""
    return [
        reader
        for reader in view.readers
        if (reader.client_id, reader.client_host) == (owner.client_id, owner.client_host)
    ]


def _of_offset(view: PartitionView, commit: ExplainedCommit) -> Iterator[Advised]:
    offset = commit.committed_offset
    if commit.is_unstable:
        yield (
            f"An open transaction may change the group's offset in {view.name}: consumers that"
            " start there wait (UNSTABLE_OFFSET_COMMIT).",
            "Commit or abort the transaction: `odradek txn list`.",
        )
    if 0 <= offset < view.log_start_offset:
        lost = view.log_start_offset - offset
        yield (
            f"{_records(lost)} of {view.name} were deleted before the group read them: its offset"
            f" is {offset}, the log starts at {view.log_start_offset}.",
            "Keep records longer (retention.ms, retention.bytes), or read faster.",
        )
    if offset > view.log_end_offset:
        yield (
            f"The group's offset in {view.name} is {offset}, beyond its end at"
            f" {view.log_end_offset}: its consumers reset by auto.offset.reset.",
            "Correct it with `odradek group reset-offsets`.",
        )


def _of_reader(
    group: ExplainedGroup,
    view: PartitionView,
    owner: ExplainedMember | None,
    commit: ExplainedCommit,
    now_ms: int,
) -> Iterator[Advised]:
    """Why the group does not progress in a partition that has records for it."""
    if owner is None:
        if group.members and group.group_state == "Stable":
            yield (
                f"No member of the group owns {view.name}.",
                "Check whether its members still subscribe to the topic.",
            )
        return
    who = member_text(owner)
    if owner.state == MemberProgress.STATIC_LEFT:
        yield (
            f"{view.name} is kept for {who}, a static member that has left.",
            "Start it again; other members get the partition when its session times out.",
        )
        return
    readings = _readings(view, owner)
    if not readings:
        yield (
            f"{who} owns {view.name} and does not fetch it.",
            "The partition is paused, its application has not polled since the assignment, or its"
            " process is gone: then it is removed when its session times out.",
        )
        return
    newest = min(readings, key=lambda reader: reader.idle_ms)
    if newest.idle_ms >= IDLE_MS:
        idle = duration_text(newest.idle_ms)
        if newest.fetch_idle_ms < IDLE_MS:
            yield (
                f"{who} fetches other partitions, but has not fetched {view.name} for {idle}.",
                "The partition is paused, or its application has not processed earlier records.",
            )
        else:
            yield (
                f"{who} has fetched nothing for {duration_text(newest.fetch_idle_ms)}.",
                "Its application does not poll, all its partitions are paused, or its process is"
                " gone or hangs: then it is removed when its session times out.",
            )
        return
    # Where nothing is committed, see _of_uncommitted.
    uncommitted_ms = now_ms - commit.committed_at if commit.committed_at >= 0 else 0
    if newest.offset > max(commit.committed_offset, 0) and uncommitted_ms >= UNCOMMITTED_MS:
        yield (
            f"{who} fetches {view.name} at offset {newest.offset}, but its last commit, of"
            f" {commit.committed_offset}, was {duration_text(uncommitted_ms)} ago.",
            "It does not commit, or its application is still processing earlier records.",
        )


# -- a share group in a partition -----------------------------------------------------------------


def _of_sharing(group: ExplainedGroup, view: PartitionView) -> Iterator[Advised]:
    """Records of the share group that are acquired, delayed or being dead-lettered."""
    for sharing in view.sharing:
        if sharing.group_id != group.group_id:
            continue
        if sharing.acquired_count and not sharing.available_count:
            yield _of_acquired(group, view, sharing)
        if sharing.delayed_count:
            delayed = _records(sharing.delayed_count)
            yield f"{view.name} has {delayed} delayed until the next delivery.", ""
        if sharing.archiving_count:
            archived = _records(sharing.archiving_count)
            yield (
                f"{view.name} has {archived} being written to the dead-letter topic.",
                "If that lasts, check whether the dead-letter topic can be written.",
            )


def _of_acquired(
    group: ExplainedGroup, view: PartitionView, sharing: ExplainedSharePartition
) -> Advised:
    first = sharing.locks[0]
    members = {member.member_id: member_text(member) for member in group.members}
    who = members.get(first.member_id, first.member_id)
    span = f"offset {first.start_offset}"
    if first.end_offset - first.start_offset > 1:
        span = f"offsets {first.start_offset} to {first.end_offset - 1}"
    return (
        f"{view.name} has {_records(sharing.acquired_count)} acquired by members, the first by"
        f" {who}: {span}, delivery {first.delivery_count}, locked for"
        f" {duration_text(first.left_ms)} more.",
        "They become available when they are released, or when the lock expires"
        " (share.record.lock.duration.ms).",
    )

"""What lately happened in groups of the newer kinds, read off the records that transitions write.

Such a group stands wholly in its records, so that what happens to it shows in them: a member that
is stored for the first time has joined, an assignment that lacks what it had is a demand to give
something up. So no transition need tell of itself. In memory only, like the events of classic
groups: what was before the coordinator came here is not known. Called by `consumer.groups`,
`share.groups` and `streams.groups` before the records are replayed; read by `explaining`.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    MemberState,
)
from odradek.coordinator.group.events import EventBuffer, EventKind, GroupEvent
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group import ModernGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareMemberRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
)
from odradek.coordinator.group.streams.records import (
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsMemberRecord,
    StreamsMemberState,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
)
from odradek.coordinator.outcome import Command

_Members: TypeAlias = ModernGroup[Any, Any]
_Current: TypeAlias = ConsumerCurrentAssignment | ShareCurrentAssignment | StreamsCurrentAssignment


def heartbeat_reason(command: Command, member_epoch: int) -> str:
    """What a heartbeat that changes something is about."""
    if member_epoch == 0:
        return f"{command.client_id or 'a client'} at {command.client_host} joined"
    if member_epoch < 0:
        return f"{command.client_id or 'a client'} at {command.client_host} left"
    return "a member changed its subscription"


class RebalanceTimings:
    """How long members took in the last rebalance, and since when some take."""

    __slots__ = ("revoked_ms", "revoking_since_ms", "settled_ms", "started_ms")

    def __init__(self, started_ms: int = -1) -> None:
        self.started_ms = started_ms
        """When the group's epoch last went up."""
        self.revoking_since_ms: dict[str, int] = {}
        """Since when members have been asked to give something up, as absolute times."""
        self.revoked_ms: dict[str, int] = {}
        """How long members took to give it up."""
        self.settled_ms: dict[str, int] = {}
        """How long members took from the epoch's beginning until they had what they shall have."""

    def start(self, now_ms: int) -> None:
        """A new epoch: who is giving something up goes on."""
        self.started_ms = now_ms
        self.revoked_ms.clear()
        self.settled_ms.clear()

    def forget(self, member_id: str) -> None:
        """The member has gone."""
        for times in (self.revoking_since_ms, self.revoked_ms, self.settled_ms):
            times.pop(member_id, None)


_NONE: Final = RebalanceTimings()


class EventHistory:
    """Of all groups of one kind of a shard."""

    __slots__ = ("_buffers", "_timings")

    def __init__(self) -> None:
        self._buffers: dict[str, EventBuffer] = {}
        self._timings: dict[str, RebalanceTimings] = {}

    def of(self, group_id: str) -> tuple[GroupEvent, ...]:
        """The newest events, oldest first."""
        ring = self._buffers.get(group_id)
        return () if ring is None else ring.newest()

    def timings(self, group_id: str) -> RebalanceTimings:
        """How long what takes; not to be changed."""
        return self._timings.get(group_id, _NONE)

    def forget(self, group_id: str) -> None:
        """The group is no more."""
        self._buffers.pop(group_id, None)
        self._timings.pop(group_id, None)

    def mark(self, group_id: str, at_ms: int, kind: EventKind, reason: str) -> None:
        """Something has happened that does not show in the group's own records."""
        self._buffers.setdefault(group_id, EventBuffer()).add(at_ms, kind, "", reason)

    def add_loaded(self, group: _Members, now_ms: int) -> None:
        """The coordinator has come here; of an Empty group nobody asks why it is at work."""
        if not group.is_empty:
            self.mark(group.group_id, now_ms, EventKind.LOADED, "")

    def note(
        self,
        group: _Members,
        records: Sequence[GroupRecord],
        now_ms: int,
        why: str,
        *,
        is_expired: bool = False,
    ) -> None:
        """These records are about to change the group, for that reason. `is_expired`: members that
        they remove have let a timeout pass."""
        if not records:
            return
        group_id = group.group_id
        ring = self._buffers.get(group_id)
        if ring is None:
            ring = self._buffers[group_id] = EventBuffer()
        timings = self._timings.get(group_id)
        if timings is None:
            timings = self._timings[group_id] = RebalanceTimings()
        retargeted = sum(
            isinstance(record, (ConsumerTargetRecord, ShareTargetRecord, StreamsTargetRecord))
            and record.target is not None
            for record in records
        )
        for record in records:
            match record:
                case ConsumerCurrentRecord() | ShareCurrentRecord() | StreamsCurrentRecord():
                    if record.current is not None:
                        _add_assignment_event(
                            record.member_id, record.current, ring, timings, now_ms
                        )
                case ConsumerEpochRecord() | ShareEpochRecord() | StreamsEpochRecord():
                    if record.epoch is not None:
                        timings.start(now_ms)
                        what = f"epoch {record.epoch.epoch}: {why}"
                        ring.add(now_ms, EventKind.REBALANCE_STARTED, "", what)
                case (
                    ConsumerTargetEpochRecord()
                    | ShareTargetEpochRecord()
                    | StreamsTargetEpochRecord()
                ):
                    if record.epoch is not None:
                        what = f"epoch {record.epoch.epoch}: new targets for {retargeted} members"
                        ring.add(now_ms, EventKind.TARGET_ASSIGNED, "", what)
                case ConsumerMemberRecord() | ShareMemberRecord() | StreamsMemberRecord():
                    if record.member is None:
                        timings.forget(record.member_id)
                        kind = EventKind.MEMBER_EXPIRED if is_expired else EventKind.MEMBER_LEFT
                    elif group.member(record.member_id) is None:
                        kind = EventKind.MEMBER_JOINED
                    else:
                        kind = EventKind.MEMBER_CHANGED
                    ring.add(now_ms, kind, record.member_id, why)


def _add_assignment_event(
    member_id: str, current: _Current, ring: EventBuffer, timings: RebalanceTimings, now_ms: int
) -> None:
    pending_revocation_text = _pending_revocation(current)
    if pending_revocation_text:
        if member_id not in timings.revoking_since_ms:
            timings.revoking_since_ms[member_id] = now_ms
            ring.add(now_ms, EventKind.REVOCATION_STARTED, member_id, pending_revocation_text)
        return
    since_ms = timings.revoking_since_ms.pop(member_id, None)
    if since_ms is not None:
        timings.revoked_ms[member_id] = took_ms = now_ms - since_ms
        ring.add(now_ms, EventKind.REVOKED, member_id, f"after {took_ms} ms")
    if _is_settled(current) and timings.started_ms >= 0:
        timings.settled_ms[member_id] = now_ms - timings.started_ms


def _pending_revocation(current: _Current) -> str:
    """How much the member is asked to give up, in words; empty if nothing."""
    match current:
        case ConsumerCurrentAssignment(state=MemberState.UNREVOKED_PARTITIONS):
            count = sum(len(epochs) for epochs in current.pending_revocation.values())
            return f"{count} partitions"
        case StreamsCurrentAssignment(state=StreamsMemberState.UNREVOKED_TASKS):
            held = current.pending_revocation
            return f"{sum(len(of) for tasks in held for of in tasks.values())} tasks"
        case _:
            return ""


def _is_settled(current: _Current) -> bool:
    """Whether it has what it shall have; in share groups everybody has that at once."""
    match current:
        case ConsumerCurrentAssignment():
            return current.state is MemberState.STABLE
        case StreamsCurrentAssignment():
            return current.state is StreamsMemberState.STABLE
        case _:
            return True

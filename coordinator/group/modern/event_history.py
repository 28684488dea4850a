"""The last events of groups of the newer types, derived from the records that transitions write.

All changes of such a group are records: a member that is stored for the first time has joined, a
state UNREVOKED is the start of a revocation. So transitions do not report events. Events are in
memory only, as in classic groups: those before the coordinator moved here are not known. Called by
`modern.group_type` before the records are replayed; read by `administration.explanation`.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from odradek.coordinator.group.events import EventBuffer, EventKind, GroupEvent
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group import AnyGroup
from odradek.coordinator.group.modern.records import (
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    MemberState,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.outcome import Command


def heartbeat_reason(command: Command, member_epoch: int) -> str:
    """The reason of the events that a heartbeat causes."""
    if member_epoch == 0:
        return f"{command.client_id or 'a client'} at {command.client_host} joined"
    if member_epoch < 0:
        return f"{command.client_id or 'a client'} at {command.client_host} left"
    return "a member changed its subscription"


class RebalanceTimings:
    """How long members took in the last rebalance, and since when they have been revoking."""

    __slots__ = ("revoked_ms", "revoking_since_ms", "settled_ms", "started_ms")

    def __init__(self) -> None:
        self.started_ms = -1
        """When the group's epoch last increased."""
        self.revoking_since_ms: dict[str, int] = {}
        """When members started to revoke, as absolute times."""
        self.revoked_ms: dict[str, int] = {}
        """How long members took to revoke."""
        self.settled_ms: dict[str, int] = {}
        """The time from the start of the epoch until members reached their targets."""

    def start(self, now_ms: int) -> None:
        """A new epoch; revocations in progress continue."""
        self.started_ms = now_ms
        self.revoked_ms.clear()
        self.settled_ms.clear()

    def forget(self, member_id: str) -> None:
        """The member has left."""
        for times in (self.revoking_since_ms, self.revoked_ms, self.settled_ms):
            times.pop(member_id, None)


_NONE: Final = RebalanceTimings()


class EventHistory:
    """The events of all groups of one type in a shard."""

    __slots__ = ("_buffers", "_timings")

    def __init__(self) -> None:
        self._buffers: defaultdict[str, EventBuffer] = defaultdict(EventBuffer)
        self._timings: defaultdict[str, RebalanceTimings] = defaultdict(RebalanceTimings)

    def newest(self, group_id: str) -> tuple[GroupEvent, ...]:
        """The newest events, oldest first."""
        buffer = self._buffers.get(group_id)
        return () if buffer is None else buffer.newest()

    def timings(self, group_id: str) -> RebalanceTimings:
        """The timings of the last rebalance; not to be changed."""
        return self._timings.get(group_id, _NONE)

    def forget(self, group_id: str) -> None:
        """The group has been deleted."""
        self._buffers.pop(group_id, None)
        self._timings.pop(group_id, None)

    def add(self, group_id: str, at_ms: int, kind: EventKind, reason: str) -> None:
        """Add an event that is not in the group's own records."""
        self._buffers[group_id].add(at_ms, kind, "", reason)

    def add_records(
        self,
        group: AnyGroup,
        records: Sequence[GroupRecord],
        now_ms: int,
        why: str,
        *,
        is_expired: bool = False,
    ) -> None:
        """Add the events of records that will be replayed next. `is_expired`: the members that they
        remove have exceeded a timeout."""
        group_id = group.group_id
        buffer, timings = self._buffers[group_id], self._timings[group_id]
        target_count = sum(
            isinstance(record, TargetRecord) and record.value is not None for record in records
        )
        for record in records:
            match record:
                case CurrentRecord(value=current) if current is not None:
                    _add_assignment_event(group, record.member_id, current, buffer, timings, now_ms)
                case EpochRecord(value=epoch) if epoch is not None:
                    timings.start(now_ms)
                    what = f"epoch {epoch.epoch}: {why}"
                    buffer.add(now_ms, EventKind.REBALANCE_STARTED, "", what)
                case TargetEpochRecord(value=epoch) if epoch is not None:
                    what = f"epoch {epoch.epoch}: new targets for {target_count} members"
                    buffer.add(now_ms, EventKind.TARGET_ASSIGNED, "", what)
                case MemberRecord(member_id=member_id, value=member):
                    if member is None:
                        timings.forget(member_id)
                        kind = EventKind.MEMBER_EXPIRED if is_expired else EventKind.MEMBER_LEFT
                    elif group.member(member_id) is None:
                        kind = EventKind.MEMBER_JOINED
                    else:
                        kind = EventKind.MEMBER_CHANGED
                    buffer.add(now_ms, kind, member_id, why)


def _add_assignment_event(
    group: AnyGroup,
    member_id: str,
    current: CurrentAssignment,
    buffer: EventBuffer,
    timings: RebalanceTimings,
    now_ms: int,
) -> None:
    if current.state is MemberState.UNREVOKED:
        if member_id not in timings.revoking_since_ms:
            timings.revoking_since_ms[member_id] = now_ms
            what = f"{group.pending_count(current)} {group.unit}"
            buffer.add(now_ms, EventKind.REVOCATION_STARTED, member_id, what)
        return
    since_ms = timings.revoking_since_ms.pop(member_id, None)
    if since_ms is not None:
        timings.revoked_ms[member_id] = took_ms = now_ms - since_ms
        buffer.add(now_ms, EventKind.REVOKED, member_id, f"after {took_ms} ms")
    if current.state is MemberState.STABLE and timings.started_ms >= 0:
        timings.settled_ms[member_id] = now_ms - timings.started_ms

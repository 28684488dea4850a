"""What lately happened in consumer groups, read off the records that transitions will write.

A consumer group stands wholly in its records, so that what happens to it shows in them: a member
that is stored for the first time has joined, an assignment that lacks what it had is a demand to
give something up. So no transition need tell of itself. In memory only, like the events of classic
groups: what was before the coordinator came here is not known. Called by `consumer.groups` before
the records are replayed; read by `explaining`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.group.consumer.group import ConsumerGroup
from coordinator.group.consumer.records import (
    CurrentStored,
    GroupEpochStored,
    MemberState,
    MemberStored,
    TargetEpochStored,
    TargetStored,
)
from coordinator.group.events import EventKind, EventRing, GroupEvent
from coordinator.group.records import GroupRecord


class Timings:
    """How long members took in the last rebalance, and since when some take."""

    __slots__ = ("revoked_ms", "revoking", "settled_ms", "started_ms")

    def __init__(self, started_ms: int = -1) -> None:
        self.started_ms = started_ms
        """When the group's epoch last went up."""
        self.revoking: dict[str, int] = {}
        """Since when members have been asked to give up partitions, as absolute times."""
        self.revoked_ms: dict[str, int] = {}
        """How long members took to give up partitions."""
        self.settled_ms: dict[str, int] = {}
        """How long members took from the epoch's beginning until they had what they shall have."""

    def start(self, now_ms: int) -> None:
        """A new epoch: who is giving up partitions goes on."""
        self.started_ms = now_ms
        self.revoked_ms.clear()
        self.settled_ms.clear()

    def forget(self, member_id: str) -> None:
        """The member has gone."""
        for times in (self.revoking, self.revoked_ms, self.settled_ms):
            times.pop(member_id, None)


_NONE: Final = Timings()


class ConsumerEvents:
    """Of all consumer groups of a shard."""

    __slots__ = ("_rings", "_timings")

    def __init__(self) -> None:
        self._rings: dict[str, EventRing] = {}
        self._timings: dict[str, Timings] = {}

    def of(self, group_id: str) -> tuple[GroupEvent, ...]:
        """The newest events, oldest first."""
        ring = self._rings.get(group_id)
        return () if ring is None else ring.newest()

    def timings(self, group_id: str) -> Timings:
        """How long what takes; not to be changed."""
        return self._timings.get(group_id, _NONE)

    def forget(self, group_id: str) -> None:
        """The group is no more."""
        self._rings.pop(group_id, None)
        self._timings.pop(group_id, None)

    def mark(self, group_id: str, at_ms: int, kind: EventKind, reason: str) -> None:
        """Something has happened that does not show in the group's own records."""
        self._rings.setdefault(group_id, EventRing()).add(at_ms, kind, "", reason)

    def note(
        self, group: ConsumerGroup, records: Sequence[GroupRecord], now_ms: int, why: str
    ) -> None:
        """These records are about to change the group, for that reason."""
        if not records:
            return
        group_id = group.group_id
        ring = self._rings.get(group_id)
        if ring is None:
            ring = self._rings[group_id] = EventRing()
        timings = self._timings.get(group_id)
        if timings is None:
            timings = self._timings[group_id] = Timings()
        retargeted = sum(type(record) is TargetStored for record in records)
        for record in records:
            match record:
                case CurrentStored():
                    _note_current(group, record, ring, timings, now_ms)
                case GroupEpochStored(epoch=epoch) if epoch is not None:
                    timings.start(now_ms)
                    ring.add(now_ms, EventKind.REBALANCE_STARTED, "", f"epoch {epoch.epoch}: {why}")
                case TargetEpochStored(epoch=target) if target is not None:
                    what = f"epoch {target.epoch}: new targets for {retargeted} members"
                    ring.add(now_ms, EventKind.TARGET_ASSIGNED, "", what)
                case MemberStored():
                    _note_member(group, record, ring, timings, now_ms, why)


def _note_member(
    group: ConsumerGroup,
    record: MemberStored,
    ring: EventRing,
    timings: Timings,
    now_ms: int,
    why: str,
) -> None:
    member_id = record.member_id
    if record.member is None:
        timings.forget(member_id)
        ring.add(now_ms, EventKind.MEMBER_LEFT, member_id, why)
    elif group.member(member_id) is None:
        ring.add(now_ms, EventKind.MEMBER_JOINED, member_id, why)
    else:
        ring.add(now_ms, EventKind.MEMBER_CHANGED, member_id, why)


def _note_current(
    group: ConsumerGroup, record: CurrentStored, ring: EventRing, timings: Timings, now_ms: int
) -> None:
    member_id, current = record.member_id, record.current
    if current is None:
        return
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if member_id not in timings.revoking:
            timings.revoking[member_id] = now_ms
            count = _count(current.pending_revocation)
            ring.add(now_ms, EventKind.REVOCATION_STARTED, member_id, f"{count} partitions")
        return
    since_ms = timings.revoking.pop(member_id, None)
    if since_ms is not None:
        timings.revoked_ms[member_id] = took_ms = now_ms - since_ms
        ring.add(now_ms, EventKind.REVOKED, member_id, f"after {took_ms} ms")
    if current.state is MemberState.STABLE and timings.started_ms >= 0:
        timings.settled_ms[member_id] = now_ms - timings.started_ms


def _count(partitions: Mapping[bytes, Mapping[int, int]]) -> int:
    return sum(len(epochs) for epochs in partitions.values())

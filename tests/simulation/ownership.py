"""Ownership in groups whose members send heartbeats, by the log and by the members.

Owned are the partitions of a consumer group (KIP-848) and the tasks of a streams group (KIP-1071).
Checked after every committed batch of the group topic, and at every response to a member:

- by the log a partition has one owner at a time, also until that has revoked it; so has an active
  task, and no process has a task twice, in whatever roles;
- epoch and places of a response are in the committed log;
- no member adds a place that another member of the group still has, whatever the log says;
- the epoch of a member never decreases, in the log and in responses;
- a member gets UNKNOWN_MEMBER_ID only if the log has removed it since it joined.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    PartitionEpochs,
)
from odradek.coordinator.group.streams.group import tasks_by_role
from odradek.coordinator.group.streams.records import (
    StreamsCurrentRecord,
    StreamsGroupMember,
    StreamsMemberRecord,
    TasksTuple,
    TasksTupleWithEpochs,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid
from tests.simulation.simulation import Violation

ACTIVE: Final = 0
CONSUMER_GROUP: Final = "consumers"
_ROLES: Final = ("", "standby ", "warm-up ")
_Who: TypeAlias = tuple[str, str]


class Place(NamedTuple):
    """A partition of a topic, or a task: a partition of a subtopology in a role."""

    part: Uuid | str
    number: int
    role: int = ACTIVE

    def __str__(self) -> str:
        part = self.part if isinstance(self.part, str) else self.part[-1]
        return f"{_ROLES[self.role]}{part}-{self.number}"


def partitions_of(topics: PartitionEpochs) -> frozenset[Place]:
    """Partitions as places."""
    return frozenset(
        Place(topic_id, index) for topic_id, epochs in topics.items() for index in epochs
    )


def tasks_of(held: TasksTupleWithEpochs | TasksTuple) -> frozenset[Place]:
    """Tasks as places."""
    return frozenset(Place(part, index, role) for role, part, index in tasks_by_role(held))


Stored: TypeAlias = (
    ConsumerMemberRecord | ConsumerCurrentRecord | StreamsMemberRecord | StreamsCurrentRecord
)


class Ownership:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.taken_count = 0
        self.given_up_count = 0
        self.removed_count = 0
        self.standby_count = 0
        self._members: dict[_Who, str] = {}
        """By the committed log, with the member's process, if that counts."""
        self._removed: set[_Who] = set()
        self._let_in: dict[_Who, int] = {}
        """Members that got an epoch, and no fencing error since."""
        self._owned: dict[_Who, frozenset[Place]] = {}
        self._newest: dict[_Who, int] = {}
        self._said: set[tuple[_Who, int, frozenset[Place]]] = set()
        self._epochs: set[tuple[_Who, int]] = set()
        self._has: dict[_Who, set[Place]] = {}

    # -- the log -----------------------------------------------------------------------------------

    def stored(self, record: Stored) -> None:
        """A record is committed."""
        who = record.group_id, record.member_id
        if isinstance(record, ConsumerMemberRecord | StreamsMemberRecord):
            if record.value is None:
                self.removed_count += 1
                self._members.pop(who, None)
                self._removed.add(who)
            else:
                member = record.value
                self._members[who] = (
                    member.process_id if isinstance(member, StreamsGroupMember) else ""
                )
        elif record.value is None:
            self._owned.pop(who, None)
            self._newest.pop(who, None)
        elif isinstance(record, ConsumerCurrentRecord):
            assigned = partitions_of(record.value.assigned)
            pending = partitions_of(record.value.pending_revocation)
            self._own(who, record.value.member_epoch, assigned, pending)
        else:
            assigned, pending = (
                tasks_of(record.value.assigned),
                tasks_of(record.value.pending_revocation),
            )
            self._own(who, record.value.member_epoch, assigned, pending)

    def _own(
        self, who: _Who, epoch: int, assigned: frozenset[Place], pending: frozenset[Place]
    ) -> None:
        """By the log these places belong to a member; the old owner has them until it has
        revoked them."""
        if epoch < self._newest.get(who, epoch):
            raise Violation(f"the epoch of {who[1]} goes back to {epoch}")
        self._newest[who] = epoch
        self._said.add((who, epoch, assigned))
        self._epochs.add((who, epoch))
        owned = self._owned[who] = assigned | pending
        if len({(place.part, place.number) for place in owned}) < len(owned):
            raise Violation(f"by the log {who[1]} has a task twice: {_named(owned)}")
        for other, theirs in self._owned.items():
            both = self._clash(who, owned, other, theirs)
            if both:
                raise Violation(
                    f"by the log {_named(both)} of {who[0]} belongs to {who[1]} and {other[1]}"
                )

    def _clash(
        self, who: _Who, owned: Iterable[Place], other: _Who, theirs: Iterable[Place]
    ) -> list[Place]:
        """The places of one member that the other may not have at the same time."""
        if other == who or other[0] != who[0]:
            return []
        process = self._members.get(who)
        if process and process == self._members.get(other):
            taken = {(place.part, place.number) for place in theirs}
            return [place for place in owned if (place.part, place.number) in taken]
        active = {place for place in theirs if place.role == ACTIVE}
        return [place for place in owned if place in active]

    # -- what members are told, and do -------------------------------------------------------------

    def told(
        self, group_id: str, member_id: str, epoch: int, assigned: frozenset[Place] | None
    ) -> None:
        """The response to a heartbeat has this epoch and, if not None, these places."""
        who = group_id, member_id
        if epoch < self._let_in.get(who, epoch):
            raise Violation(f"{member_id} is told epoch {epoch} after {self._let_in[who]}")
        self._let_in[who] = epoch
        is_said = (
            (who, epoch) in self._epochs
            if assigned is None
            else (who, epoch, assigned) in self._said
        )
        if not is_said:
            what = "" if assigned is None else f" with {_named(assigned)}"
            raise Violation(
                f"{member_id} is told epoch {epoch} of {group_id}{what} before that is committed"
            )

    def takes(self, group_id: str, member_id: str, places: frozenset[Place]) -> None:
        """A member adds places."""
        who = group_id, member_id
        self.taken_count += len(places)
        self.standby_count += sum(place.role != ACTIVE for place in places)
        self._has.setdefault(who, set()).update(places)
        # A removed member may not know it yet. It is ignored.
        if who not in self._members:
            return
        for other, theirs in self._has.items():
            both = self._clash(who, places, other, theirs) if other in self._members else ()
            if both:
                raise Violation(
                    f"{member_id} takes {_named(both)} of {group_id}, which {other[1]} still reads"
                )

    def gives_up(self, group_id: str, member_id: str, places: frozenset[Place]) -> None:
        """A member has revoked places."""
        self.given_up_count += len(places)
        self._has.setdefault((group_id, member_id), set()).difference_update(places)

    def refused(self, group_id: str, member_id: str, code: int) -> None:
        """A member is fenced, and owns nothing any more.

        A consumer that is still a member is never fenced: the response repeats what it has missed.
        """
        who = group_id, member_id
        self._has.pop(who, None)
        if code == ErrorCode.FENCED_MEMBER_EPOCH and group_id == CONSUMER_GROUP:
            raise Violation(f"{member_id} is fenced")
        if code == ErrorCode.UNKNOWN_MEMBER_ID and who in self._let_in:
            if who not in self._removed:
                raise Violation(f"{member_id} is not known any more, and was never removed")
            del self._let_in[who]

    def unread(self, group_id: str, places: Iterable[Place]) -> set[Place]:
        """Places that no member of the group has."""
        read = {
            place
            for who, theirs in self._has.items()
            if who[0] == group_id and who in self._members
            for place in theirs
        }
        return set(places) - read


def _named(places: Iterable[Place]) -> str:
    return ", ".join(sorted(map(str, places))) or "nothing"

"""Who owns what in groups of the consumer protocol (KIP-848), by the log and by the members.

Held against each other after every committed batch of the groups' topic, and whenever a member is
told something:

- by the log a partition belongs to one member at a time, one that has still to give it up included;
- what a member is told, epoch and partitions, stands in the committed log;
- nobody takes a partition that another member of the group still reads, whatever the log says;
- a member is told that it is not known only if the log has removed it since it was let in.
"""

from collections.abc import Iterable
from typing import TypeAlias

from coordinator.group.consumer_records import (
    ConsumerGroupRecord,
    CurrentStored,
    MemberStored,
    PartitionEpochs,
)
from protocol.errors import ErrorCode
from protocol.types import Uuid
from tests.simulation.simulation import Violation

Place: TypeAlias = tuple[Uuid, int]
_Who: TypeAlias = tuple[str, str]


def places_of(topics: PartitionEpochs) -> frozenset[Place]:
    """Partitions as pairs."""
    return frozenset((topic_id, index) for topic_id, epochs in topics.items() for index in epochs)


class Ownership:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.taken_count = 0
        self.given_up_count = 0
        self.removed_count = 0
        self._members: set[_Who] = set()
        """By the committed log."""
        self._removed: set[_Who] = set()
        self._let_in: set[_Who] = set()
        """Who was told an epoch, and has not been told since that it is not known."""
        self._owned: dict[_Who, frozenset[Place]] = {}
        self._said: set[tuple[_Who, int, frozenset[Place]]] = set()
        self._epochs: set[tuple[_Who, int]] = set()
        self._reads: dict[_Who, set[Place]] = {}

    # -- the log -----------------------------------------------------------------------------------

    def stored(self, record: ConsumerGroupRecord) -> None:
        """A record has been committed."""
        if isinstance(record, MemberStored):
            who = record.group_id, record.member_id
            if record.member is None:
                self.removed_count += 1
                self._members.discard(who)
                self._removed.add(who)
            else:
                self._members.add(who)
        elif isinstance(record, CurrentStored):
            who = record.group_id, record.member_id
            current = record.current
            if current is None:
                self._owned.pop(who, None)
                return
            assigned = places_of(current.assigned)
            self._said.add((who, current.member_epoch, assigned))
            self._epochs.add((who, current.member_epoch))
            self._owned[who] = assigned | places_of(current.pending_revocation)
            for other, owned in self._owned.items():
                both = owned & self._owned[who]
                if other != who and other[0] == who[0] and both:
                    raise Violation(
                        f"by the log {_named(both)} of {who[0]} belongs to {who[1]} and {other[1]}"
                    )

    # -- what members are told, and do -------------------------------------------------------------

    def told(
        self, group_id: str, member_id: str, epoch: int, assigned: frozenset[Place] | None
    ) -> None:
        """A heartbeat was answered with this epoch and, if not None, these partitions."""
        who = group_id, member_id
        if who not in self._let_in:
            self._let_in.add(who)
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

    def takes(self, group_id: str, member_id: str, places: Iterable[Place]) -> None:
        """A member begins to read partitions."""
        who = group_id, member_id
        reads = self._reads.setdefault(who, set())
        for place in places:
            self.taken_count += 1
            reads.add(place)
            # Whoever was removed may not know it yet, and is not heard any more.
            if who not in self._members:
                continue
            for other, theirs in self._reads.items():
                is_other = other != who and other[0] == group_id and other in self._members
                if is_other and place in theirs:
                    raise Violation(
                        f"{member_id} takes {_named((place,))} of {group_id}, which {other[1]}"
                        " still reads"
                    )

    def gives_up(self, group_id: str, member_id: str, places: Iterable[Place]) -> None:
        """A member has ceased to read partitions."""
        for place in places:
            self.given_up_count += 1
            self._reads[group_id, member_id].discard(place)

    def refused(self, group_id: str, member_id: str, code: int) -> None:
        """A member must begin anew, and reads nothing any more."""
        who = group_id, member_id
        self._reads.pop(who, None)
        if code == ErrorCode.UNKNOWN_MEMBER_ID and who in self._let_in:
            if who not in self._removed:
                raise Violation(f"{member_id} is not known any more, and was never removed")
            self._let_in.discard(who)

    def unread(self, group_id: str, places: Iterable[Place]) -> set[Place]:
        """What nobody of the group reads."""
        read = {
            place
            for who, theirs in self._reads.items()
            if who[0] == group_id and who in self._members
            for place in theirs
        }
        return set(places) - read


def _named(places: Iterable[Place]) -> str:
    return ", ".join(f"{topic_id[-1]}-{index}" for topic_id, index in sorted(places)) or "nothing"

"""What share groups owe: nobody has what another one has, and what was accepted is done with.

The checker hears of every acquisition, and of every answer to an acknowledgement. A leader that was
deposed and has not heard of it may give out what its successor has had accepted, as in Kafka; what
its members make of it is fenced. So an acquisition is held against what was accepted in its epoch
or before, and an acceptance against all others.
"""

from collections.abc import Iterable, Mapping, Sequence

from odradek.coordinator.share.acknowledgements import AcknowledgeType
from odradek.coordinator.share.acquisition import AcquiredRange
from odradek.coordinator.share.records import decode
from odradek.coordinator.share.requests import ShareKey
from odradek.coordinator.share.state import ShareState, ShareUpdate
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.node.router.share.partitions import HostedSharePartition
from tests.simulation.share_host import GROUP, Acknowledgement
from tests.simulation.simulation import Violation
from tests.simulation.store import Identity


class _Stored:
    """What the log says of a share-partition, record by record: (delivery count, state)."""

    def __init__(self, state_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.start_offset = -1
        self.records: dict[int, tuple[int, int]] = {}

    def take(self, start_offset: int, batches: Iterable[PersisterStateBatch]) -> None:
        """The further stage of each record counts."""
        self.start_offset = max(start_offset, self.start_offset)
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                self.records[offset] = max((count, state), self.records.get(offset, (-1, -1)))
        self.records = {
            offset: stage for offset, stage in self.records.items() if offset >= self.start_offset
        }

    def knows_all_of(self, other: "_Stored") -> bool:
        """Whether nothing of the other is lost."""
        return self.start_offset >= other.start_offset and all(
            offset < self.start_offset or self.records.get(offset, (-1, -1)) >= stage
            for offset, stage in other.records.items()
        )


class ShareChecker:
    """See the module's docstring. It changes nothing."""

    def __init__(self) -> None:
        self.acquired_count = 0
        self.accepted_count = 0
        self.again_count = 0
        """Records that were given to somebody once more."""
        self.snapshot_count = 0
        self._accepted: dict[tuple[Identity, int], int] = {}
        self._seen: set[tuple[Identity, int]] = set()
        self._holders: dict[HostedSharePartition, dict[int, tuple[str, int]]] = {}
        self._stored: dict[ShareKey, _Stored] = {}

    def acquired(
        self,
        hosted: HostedSharePartition,
        member: str,
        taken: AcquiredRange,
        now_ms: int,
        until_ms: int,
    ) -> None:
        """A member has these records; for how long, by the clock of its leader."""
        holders = self._holders.setdefault(hosted, {})
        epoch = hosted.leader_epoch
        for offset in range(taken.start, taken.end):
            record = _identity(hosted), offset
            accepted = self._accepted.get(record)
            if accepted is not None and accepted <= epoch:
                raise Violation(
                    f"{offset} was accepted in epoch {accepted} and is given to {member} in {epoch}"
                )
            holder, end_ms = holders.get(offset, (member, now_ms))
            # A clock of whole milliseconds may be one behind the timer that has gone off.
            if end_ms > now_ms + 1:
                raise Violation(f"{offset} is given to {member} while {holder} has it")
            holders[offset] = member, until_ms
            self.acquired_count += 1
            self.again_count += record in self._seen
            self._seen.add(record)

    def answered(self, hosted: HostedSharePartition, batches: Sequence[Acknowledgement]) -> None:
        """A member is told that what it said of these records counts."""
        holders = self._holders.setdefault(hosted, {})
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                holders.pop(offset, None)
                if batch.acknowledge_types == [AcknowledgeType.ACCEPT]:
                    self._accept((_identity(hosted), offset), hosted.leader_epoch)

    def _accept(self, record: tuple[Identity, int], epoch: int) -> None:
        known = self._accepted.get(record)
        if known is not None:
            raise Violation(f"{record[1]} was accepted in epoch {known} and again in {epoch}")
        self._accepted[record] = epoch
        self.accepted_count += 1

    def left(self, hosted: HostedSharePartition, member: str) -> None:
        """What a member had is nobody's."""
        holders = self._holders.get(hosted, {})
        for offset in [offset for offset, held in holders.items() if held[0] == member]:
            del holders[offset]

    def stored(self, entries: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """This is committed: no snapshot knows less than what is there before it."""
        for key, value in entries:
            record = None if key is None else decode(key, value)
            assert record is not None
            if record.value is None:
                self._stored.pop(record.key, None)
                continue
            known = self._stored.get(record.key)
            if isinstance(record.value, ShareUpdate):
                if known is not None:
                    known.take(record.value.start_offset, record.value.batches)
                continue
            snapshot = _Stored(record.value.state_epoch)
            snapshot.take(record.value.start_offset, record.value.batches)
            if known is not None and known.state_epoch == snapshot.state_epoch:
                if not snapshot.knows_all_of(known):
                    raise Violation(f"a snapshot of {record.key.partition} has forgotten something")
                self.snapshot_count += 1
            self._stored[record.key] = snapshot

    def check_durable(self, known: Mapping[ShareKey, ShareState]) -> None:
        """At the end all that was accepted is durable."""
        for (topic_id, partition), offset in self._accepted:
            state = known.get(ShareKey(GROUP, topic_id, partition))
            if state is None:
                raise Violation(f"nothing is known of {partition}")
            is_done = offset < state.start_offset or any(
                batch.first_offset <= offset <= batch.last_offset
                and batch.delivery_state == RecordState.ACKNOWLEDGED
                for batch in state.batches
            )
            if not is_done:
                raise Violation(f"{offset} of {partition} was accepted, and nobody knows of it")


def _identity(hosted: HostedSharePartition) -> Identity:
    return hosted.key.place.topic_id, hosted.key.place.partition

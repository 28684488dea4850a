"""Invariants of share groups: no two members hold a record, and accepted records are not delivered
again.

The checker gets every acquisition, and every response to an acknowledgement. A deposed leader that
does not know it yet may deliver records that were accepted at its successor, as in Kafka; its
members' acknowledgements are fenced. So an acquisition is checked against the acceptances in its
epoch or before, and an acceptance against all others.
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
    """The state of a share partition in the log, record by record: (delivery count, state)."""

    def __init__(self, state_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.start_offset = -1
        self.records: dict[int, tuple[int, int]] = {}

    def take(self, start_offset: int, batches: Iterable[PersisterStateBatch]) -> None:
        """Keep the further state of each record."""
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
        """The number of records that were delivered again."""
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
        """A member holds these records, up to a deadline on the clock of their leader."""
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
            # A clock of whole milliseconds may be one behind the timer that has fired.
            if end_ms > now_ms + 1:
                raise Violation(f"{offset} is given to {member} while {holder} has it")
            holders[offset] = member, until_ms
            self.acquired_count += 1
            self.again_count += record in self._seen
            self._seen.add(record)

    def answered(self, hosted: HostedSharePartition, batches: Sequence[Acknowledgement]) -> None:
        """A member got an acknowledgement for these records."""
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
        """The records of a member are released."""
        holders = self._holders.get(hosted, {})
        for offset in [offset for offset, held in holders.items() if held[0] == member]:
            del holders[offset]

    def stored(self, entries: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """This state is committed: no snapshot has less than the states before it."""
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
        """At the end all accepted records are durable."""
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
    return hosted.key.topic_partition.topic_id, hosted.key.topic_partition.partition

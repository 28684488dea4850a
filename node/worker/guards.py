"""Who may open a transaction in a partition: those whom its coordinator has vouched for since.

A batch of a producer that enlists partitions by itself must not come after its transaction's end:
it would open one that nobody ends, and hold the last stable offset back for ever (KIP-890). So the
first batch is sent back with a guard; the router asks the coordinator and sends it again with that
guard, which holds unless a marker of that producer was written in between. Batches into an open
transaction need nobody's word. Called by `turns`, by the thread that has the store.
"""

from typing import Final

from node.bus.messages import Append, WriteMarker
from protocol.records import BatchHeader, is_transactional
from storage.partition_log import PartitionLog
from storage.producers import NO_OFFSET

GUARDS_MAX: Final = 10_000
"""Guards remembered; whoever lost one is verified once more."""


class Guards:
    """The guards given and not used yet, by store, partition and producer."""

    def __init__(self) -> None:
        self._given: dict[tuple[int, int, int], int] = {}
        self._newest = 0

    def check(
        self, request: Append, log: PartitionLog | None, header: BatchHeader, now_ms: int
    ) -> int | None:
        """None if the batch may be appended, or the guard with which it may come again."""
        if log is None or not is_transactional(header.attributes):
            return None
        entry = log.producers.get(header.producer_id)
        if (
            entry is not None
            and entry.transaction_first_offset != NO_OFFSET
            and entry.producer_epoch == header.producer_epoch
        ):
            return None
        key = request.store, request.number, header.producer_id
        given = self._given.get(key)
        if given is not None and given == request.guard:
            return None
        if given is None:
            if len(self._given) >= GUARDS_MAX:
                del self._given[next(iter(self._given))]
            # Beginning at the time, so that no guard of an earlier process is taken for one.
            self._newest = max(self._newest + 1, now_ms << 16)
            given = self._given[key] = self._newest
        return given

    def drop(self, marker: WriteMarker) -> None:
        """A transaction of the producer ends: what was vouched for before counts no more."""
        self._given.pop((marker.store, marker.number, marker.producer_id), None)

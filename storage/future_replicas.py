"""The future replicas of a store: logs that are copied from another log directory (KIP-113).

A future replica is created like any partition, and appended to like a follower. Nobody finds it
under its partition's number until it has all records of the log that it replaces: then `promote`
makes it the current one, in one synced change of the catalog.
"""

from collections.abc import Callable, Mapping

from odradek.storage.catalog import Catalog
from odradek.storage.layout import FUTURE_PARTITION
from odradek.storage.partition_log import PartitionLog


class FutureReplicas:
    """Those of one store, of which this is a part. `sync` puts all that was committed on disk,
    `publish` shows the offsets of a log to readers."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Mapping[int, PartitionLog],
        sync: Callable[[], None],
        publish: Callable[[PartitionLog], None],
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._sync = sync
        self._publish = publish

    def number_of(self, topic_id: bytes, partition: int) -> int | None:
        """The store-local number of a partition's future replica, None if there is none here."""
        return self._catalog.numbers.get((topic_id, partition + FUTURE_PARTITION))

    def numbers(self) -> list[int]:
        """The numbers of all future replicas."""
        return sorted(self._catalog.future_replicas)

    def replacements_of(self, number: int) -> int:
        """How often a replica has replaced one in another log directory. If a process ends between
        a replacement and the deletion of the replaced one, this tells the two apart."""
        return self._catalog.partitions[number].replacements

    def promote(self, number: int, replaced: PartitionLog, replacements: int) -> None:
        """A future replica that has all records of the log that it replaces becomes the current
        one, with the producers, leader epochs and high watermark of that one. `replacements` is one
        more than those of that one. Its records are on disk first, and the change is when this
        returns. Not inside a turn. Raises StorageError."""
        log = self._logs[number]
        assert log.log_end_offset == replaced.log_end_offset, "the future replica is behind"
        self._sync()
        with self._catalog.change() as change:
            change.promote_partition(number, replacements)
        # Producers without records are known to the old log only.
        log.producers = dict(replaced.producers)
        log.dirty_producers = log.dirty_producers | log.producers.keys()
        for epoch, start_offset in replaced.epochs.entries:
            if epoch > log.epochs.latest:
                log.epochs.assign(epoch, start_offset)
        log.leader_epoch, log.role = replaced.leader_epoch, replaced.role
        log.is_replicated, log.high_watermark = replaced.is_replicated, replaced.high_watermark
        log.undecided = replaced.undecided
        self._publish(log)

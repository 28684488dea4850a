"""The metrics of a worker's partitions and stores, read when they are scraped.

What producers have written is counted in each log (`client_bytes`); here it becomes the sum of a
topic, which does not fall when a partition moves away. Only the replica that is in use counts: not
one that is being copied to another log directory, nor that of a deleted topic of the same name.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from odradek.node.metrics.registry import Metrics
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.storage.partition_log import PartitionLog
from odradek.storage.store import Store

_BLOCK_BYTES = 512
"""The unit of st_blocks."""
_Key = tuple[str, str]


class PartitionMetrics:
    """See the module's docstring."""

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions
        self._topics: dict[str, list[int]] = {}
        """Bytes and records by topic."""
        self._counted: dict[PartitionLog, tuple[int, int]] = {}
        """What of each log is in the sums."""

    def register(self, metrics: Metrics) -> None:
        """Have the families of partitions and stores read."""
        read = metrics.read
        read(
            "odradek_log_start_offset",
            lambda: ((key, log.log_start_offset) for key, _, log in self._logs()),
        )
        read(
            "odradek_log_end_offset",
            lambda: ((key, log.log_end_offset) for key, _, log in self._logs()),
        )
        read(
            "odradek_log_size_bytes",
            lambda: ((key, _size_bytes(store, log)) for key, store, log in self._logs()),
        )
        read(
            "odradek_archive_held_bytes",
            lambda: (
                (key, log.archive.held_bytes)
                for key, _, log in self._logs()
                if log.archive is not None
            ),
        )
        read("odradek_archive_lost_bytes_total", self._lost_bytes)
        read("odradek_topic_received_bytes_total", lambda: self._topic_sums(0))
        read("odradek_topic_received_records_total", lambda: self._topic_sums(1))
        read(
            "odradek_store_size_bytes",
            lambda: ((name, folder_bytes(store.directory)) for name, store in self._stores()),
        )
        read(
            "odradek_store_segments",
            lambda: {name: len(store.catalog.segments) for name, store in self._stores()},
        )
        read(
            "odradek_segment_rewrites_total",
            lambda: {name: store.catalog.rewrite_count for name, store in self._stores()},
        )

    def _stores(self) -> Iterator[tuple[str, Store]]:
        for index, store in list(self._partitions.stores.items()):
            yield str(index), store

    def _logs(self) -> Iterator[tuple[_Key, Store, PartitionLog]]:
        """The replicas in use. A scrape is read in slices: partitions may come and go meanwhile."""
        seen: set[_Key] = set()
        for _, store in self._stores():
            numbers = store.catalog.numbers
            for number, log in list(store.partitions().items()):
                key = log.topic_name, str(log.partition)
                if key not in seen and numbers.get((log.topic_id, log.partition)) == number:
                    seen.add(key)
                    yield key, store, log

    def _topic_sums(self, index: int) -> dict[str, float]:
        counted: dict[PartitionLog, tuple[int, int]] = {}
        sums: dict[str, list[int]] = {}
        for _, _, log in self._logs():
            before = self._counted.get(log, (0, 0))
            counted[log] = now = log.client_bytes, log.client_records
            name = log.topic_name
            if name not in sums:
                sums[name] = self._topics.get(name) or [0, 0]
            sums[name][0] += now[0] - before[0]
            sums[name][1] += now[1] - before[1]
        self._counted, self._topics = counted, sums
        return {topic: each[index] for topic, each in sums.items()}

    def _lost_bytes(self) -> dict[str, int]:
        """Of each topic with a retention gate, from the start: a rise from nothing is none."""
        gated = {log.topic_name for _, _, log in self._logs() if log.archive is not None}
        stores = [store for _, store in self._stores()]
        return {name: sum(store.lost_bytes.get(name, 0) for store in stores) for name in gated}


def _size_bytes(store: Store, log: PartitionLog) -> int:
    extents = store.catalog.extents.get(log.number, ())
    return sum(extent.byte_count for extent in extents) + log.active_bytes


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk; those that vanish meanwhile are not counted."""
    total = 0
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return 0
    for entry in entries:
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
        except OSError:
            continue
    return total


def register_disk_metrics(metrics: Metrics, directories: Sequence[Path]) -> None:
    """The disks of a node's log directories: read by one of its workers for all of them."""

    def sizes(*, is_free: bool) -> Iterator[tuple[str, float]]:
        for directory in directories:
            try:
                status = os.statvfs(directory)
            except OSError:
                continue  # it is offline
            blocks = status.f_bavail if is_free else status.f_blocks
            yield str(directory), blocks * status.f_frsize

    metrics.read("odradek_disk_size_bytes", lambda: sizes(is_free=False))
    metrics.read("odradek_disk_free_bytes", lambda: sizes(is_free=True))

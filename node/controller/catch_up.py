"""Which replicas of this node are not in sync yet, after its start: probes wait for them.

A rolling restart goes on with the next node when this one is ready. If that were so before the
replicas here are in sync again, two of the three replicas of a partition could be out of sync at a
time. Called by node_readiness.py.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from odradek.cluster.metadata.image import MetadataImage

NAMES_MAX: Final = 3


class CatchUpLook:
    """One look at all partitions of an image, which does not change. In pieces: at 100,000
    partitions it takes 50 ms, for which nobody should wait."""

    def __init__(self, image: MetadataImage, node_id: int) -> None:
        self._replicas = _replicas_behind(image, node_id)
        self._names: list[str] = []
        self._count = 0

    def proceed(self, partition_count: int) -> bool:
        """Look at so many partitions more. Whether that was the last of them."""
        looked_at = 0
        for name in islice(self._replicas, partition_count):
            looked_at += 1
            if name is not None:
                self._count += 1
                if self._count <= NAMES_MAX:
                    self._names.append(name)
        return looked_at < partition_count

    @property
    def problem(self) -> str:
        """What is missing, as a sentence for probes; empty if this node has caught up."""
        if not self._count:
            return ""
        shown = ", ".join(self._names) + (", ..." if self._count > NAMES_MAX else "")
        return f"{self._count} replicas are not in sync yet: {shown}"


def _replicas_behind(image: MetadataImage, node_id: int) -> Iterator[str | None]:
    """For each partition `topic-number` if this node has a replica of it that follows a leader and
    is not in sync; otherwise None.

    Without those that cannot be in sync, or need not be: without a leader, on a log directory that
    is offline, or being added by a reassignment.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        return
    for topic in image.topics_by_id.values():
        for number, partition in enumerate(topic.partitions):
            if (
                node_id in partition.replicas
                and node_id not in partition.in_sync_replicas
                and partition.leader >= 0
                and node_id not in partition.adding_replicas
                and broker.is_online(partition.directory_of(node_id))
            ):
                yield f"{topic.name}-{number}"
            else:
                yield None

"""Applies the committed log to this node's image and publishes it to the node's processes.

Every entry is applied once, in order. The image's offset is the index of the last entry applied;
entries without records (a new leader's first, a change of the voters) only move it. Every
SNAPSHOT_ENTRIES entries the log is replaced by a snapshot of the image. Called by the Raft driver
(on_commit, on_snapshot) and by the controller's process.
"""

from collections.abc import Callable

from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.features import check_finalized_levels
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import decode_records, encode_records
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.messages import Entry
from odradek.node.controller.metadata_publisher import MetadataPublisher, snapshot_of
from odradek.node.controller.quorum_leadership import QuorumLeadership
from odradek.node.controller.raft_driver import RaftDriver

SNAPSHOT_ENTRIES = 20_000


class MetadataLoader:
    """See the module's docstring."""

    def __init__(
        self,
        image: MetadataImage,
        driver: RaftDriver,
        publisher: MetadataPublisher,
        leadership: QuorumLeadership,
        before_publish: Callable[[MetadataImage], None] = lambda _image: None,
    ) -> None:
        """`image` is that of the newest snapshot. `before_publish` gets each image with other
        configs before the processes do."""
        self.image = image
        self._driver = driver
        self._publisher = publisher
        self._leadership = leadership
        self._snapshot_index = image.offset
        self._before_publish = before_publish

    def on_commit(self, entries: tuple[Entry, ...]) -> None:
        """Apply and publish entries. Those that are applied already, because the core was
        restarted, are skipped. Raises UnsupportedFeatureLevelError, and publishes nothing then."""
        fresh = [entry for entry in entries if entry.index > self.image.offset]
        configs, features = self.image.configs, self.image.features
        for entry in fresh:
            if entry.is_configuration:
                self._leadership.on_configuration()
            active = self._leadership.active
            decided = None if active is None else active.committed(entry)
            self.image = decided or image_after(
                self.image, decode_records(entry.data) if entry.is_command else (), entry.index
            )
            self._leadership.on_applied(entry, self.image)
        if self.image.features is not features:
            check_finalized_levels(self.image)
        if self.image.configs is not configs:
            self._before_publish(self.image)
        self._publisher.publish(fresh)

    def on_snapshot(self, index: int, content: bytes) -> None:
        """Start again from a leader's snapshot."""
        self.image = image_of_snapshot(content, index)
        self._snapshot_index = index
        self._leadership.on_configuration()
        self._before_publish(self.image)
        self._publisher.broadcast(snapshot_of(self.image))

    def snapshot_if_due(self) -> None:
        """Replace the log by a snapshot if it is long enough and the disk idle."""
        index = self.image.offset
        if index - self._snapshot_index >= SNAPSHOT_ENTRIES and self._driver.is_idle:
            self._driver.snapshot(index, encode_records(image_records(self.image)))
            # Also after a failure: the next attempt is as far away as the next snapshot.
            self._snapshot_index = index


def image_of_snapshot(content: bytes, offset: int) -> MetadataImage:
    """The image that a snapshot contains. Raises UnsupportedFeatureLevelError."""
    image = image_after(MetadataImage.empty(), decode_records(content), offset)
    check_finalized_levels(image)
    return image

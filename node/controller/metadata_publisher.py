"""Publishes the committed metadata to the processes of this node, and tracks their offsets.

A process subscribes with the offset that it has. It gets what is missing, as records or as a
snapshot, and then every committed entry. Entries without records (a new leader's first, a change of
the voters) are published as empty ones, so that an image's offset is the same in every process.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import zmq

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import encode_records
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.messages import Entry
from odradek.node.bus.endpoint import bind_endpoint, encode
from odradek.node.bus.messages import (
    FromController,
    LivenessCheck,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    SubscribeMetadata,
)
from odradek.node.controller.process_liveness import ProcessLiveness
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

NO_RECORDS = encode_records(())
_PUBLISH_BYTES_MAX = 4 << 20


@dataclass(slots=True)
class _Subscriber:
    """A process of this node, and the offset that it has applied."""

    name: str
    offset: int


class MetadataPublisher:
    """See the module's docstring. Processes connect to `socket`.

    Nothing is published before `is_serving` is set. A process may be ahead of a controller that was
    just started and has no leader yet: it has to wait until the controller has caught up, since a
    worker that is set back drops the partitions that its image lacks. Only a quorum of one, whose
    log is complete (`sets_back`), sets a process back.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        driver: RaftDriver,
        *,
        sets_back: bool,
        liveness: ProcessLiveness,
    ) -> None:
        self.socket = bind_endpoint(context, address)
        self.is_serving = False
        self._driver = driver
        self._sets_back = sets_back
        self.liveness = liveness
        self._subscribers: dict[bytes, _Subscriber] = {}
        self._early: dict[bytes, SubscribeMetadata] = {}

    @property
    def names(self) -> set[str]:
        """The processes that subscribe now."""
        return {subscriber.name for subscriber in self._subscribers.values()}

    def applied_offset(self, image: MetadataImage) -> int:
        """The offset that all processes have applied. Unresponsive ones do not count: a node that
        has one is fenced and leads nothing."""
        unresponsive = self.liveness.unresponsive
        return min(
            (each.offset for each in self._subscribers.values() if each.name not in unresponsive),
            default=image.offset,
        )

    def tick(self, now_ms: int) -> None:
        """Send liveness checks if they are due; none before `is_serving`."""
        if self.is_serving and self.liveness.check(now_ms):
            self.broadcast(LivenessCheck())

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self.liveness.next_deadline_ms() if self.is_serving else None

    def subscribe(self, identity: bytes, message: SubscribeMetadata, image: MetadataImage) -> None:
        """A process has (re)connected: send it what it lacks."""
        self.liveness.on_response(message.process)
        if message.cluster_id and image.cluster_id and message.cluster_id != image.cluster_id:
            log.error(
                "a process with metadata of another cluster is rejected",
                child=message.process,
                peer_cluster_id=message.cluster_id,
                cluster_id=image.cluster_id,
            )
            return
        self._early[identity] = message
        self.serve_waiting(image)

    def serve_waiting(self, image: MetadataImage) -> None:
        """Send metadata to the processes that had to wait for this image."""
        if not self._early or not self.is_serving:
            return
        for identity, message in list(self._early.items()):
            if message.offset <= image.offset or self._sets_back:
                del self._early[identity]
                self._serve(identity, message, image)

    def _serve(self, identity: bytes, message: SubscribeMetadata, image: MetadataImage) -> None:
        have, raft_log = message.offset, self._driver.node.log
        self._subscribers[identity] = _Subscriber(message.process, have)
        if have > image.offset or have == 0 or have < raft_log.first_index - 1:
            self.send(identity, [snapshot_of(image)])
            return
        while have < image.offset:
            entries = raft_log.slice(have + 1, _PUBLISH_BYTES_MAX)[: image.offset - have]
            self.send(identity, [_records(entries)])
            have += len(entries)

    def applied(self, identity: bytes, message: MetadataApplied) -> None:
        """A process has applied the metadata up to an offset."""
        subscriber = self._subscribers.get(identity)
        if subscriber is not None:
            subscriber.offset = max(subscriber.offset, message.offset)

    def forget(self, names: Container[str]) -> None:
        """Forget processes that end for good: nothing waits for them."""
        for identity, subscriber in list(self._subscribers.items()):
            if subscriber.name in names:
                del self._subscribers[identity]

    def publish(self, entries: Sequence[Entry]) -> None:
        """Send committed entries to every process."""
        if entries and self._subscribers:
            self.broadcast(_records(entries))

    def broadcast(self, message: FromController) -> None:
        """Send a message to every process."""
        payload = encode([message])
        for identity in list(self._subscribers):
            self._send(identity, payload)

    def send(self, identity: bytes, messages: "list[FromController]") -> None:
        """Send messages to one process."""
        self._send(identity, encode(messages))

    def _send(self, identity: bytes, payload: bytes) -> None:
        try:
            self.socket.send_multipart((identity, payload), zmq.NOBLOCK)
        except zmq.ZMQError:
            # It is disconnected. It subscribes again when it returns; nothing waits for it until
            # then.
            self._subscribers.pop(identity, None)
            self._early.pop(identity, None)


def snapshot_of(image: MetadataImage) -> MetadataSnapshot:
    """The whole image as a message."""
    return MetadataSnapshot(image.offset, (encode_records(image_records(image)),))


def _records(entries: Sequence[Entry]) -> MetadataRecords:
    return MetadataRecords(
        entries[0].index - 1,
        tuple(entry.data if entry.is_command else NO_RECORDS for entry in entries),
    )

"""The processes of this node that follow the metadata: what they are told, how far they have come.

A process greets with what it has and is told what is missing, as records or as a whole snapshot;
from then on it hears of every committed entry. Entries that are none of the application's (a new
leader's first, a change of who votes) are told as empty ones, so that the offset of an image is the
place in the log everywhere.
"""

import logging
from collections.abc import Container, Iterable, Sequence, Set

import zmq

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import encode_records
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.messages import Entry
from odradek.node.bus.endpoint import bind_endpoint, encode
from odradek.node.bus.messages import (
    FromController,
    LivenessCheck,
    LivenessReply,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    SubscribeMetadata,
)
from odradek.node.controller.process_liveness import ProcessLiveness
from odradek.node.controller.raft_driver import RaftDriver

log = logging.getLogger(__name__)

NO_RECORDS = encode_records(())
_PUBLISH_BYTES_MAX = 4 << 20


class _Subscriber:
    """A process of this node and how far it has come."""

    __slots__ = ("identity", "incarnation", "name", "offset")

    def __init__(self, identity: bytes, name: str, incarnation: int, offset: int) -> None:
        self.identity = identity
        self.name = name
        self.incarnation = incarnation
        self.offset = offset


class MetadataPublisher:
    """See the module's docstring. `socket` is where they connect.

    Nobody is served before `is_serving` is set. A process may know more than a controller that was
    just started and has not heard of the leader yet: it is told nothing until the controller has
    come as far, for a worker that was set back would drop the partitions of what it is not told of.
    Only a quorum of one, which has all there is (`sets_back`), corrects it.
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
        self._liveness = liveness
        self._subscribers: dict[bytes, _Subscriber] = {}
        self._early: dict[bytes, SubscribeMetadata] = {}

    @property
    def names(self) -> set[str]:
        """Who follows now."""
        return {follower.name for follower in self._subscribers.values()}

    @property
    def unresponsive(self) -> Set[str]:
        """Who does not answer any more."""
        return self._liveness.unresponsive

    def reached(self, image: MetadataImage) -> int:
        """The offset up to which everybody has carried the metadata out, but those who are silent:
        a node that has one leads nothing, and need not keep others waiting."""
        unresponsive = self._liveness.unresponsive
        return min(
            (f.offset for f in self._subscribers.values() if f.name not in unresponsive),
            default=image.offset,
        )

    def tick(self, now_ms: int) -> None:
        """Ask who is there, if it is time to: nobody before anybody is served, for they could not
        answer."""
        if self.is_serving and self._liveness.look(now_ms):
            self.tell(LivenessCheck())

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self._liveness.next_deadline_ms() if self.is_serving else None

    def still_there(self, message: LivenessReply) -> None:
        """A process has answered."""
        self._liveness.heard(message.process)

    def follow(self, identity: bytes, message: SubscribeMetadata, image: MetadataImage) -> None:
        """A process has (re)connected: tell it what it misses."""
        self._liveness.heard(message.process)
        if message.cluster_id and image.cluster_id and message.cluster_id != image.cluster_id:
            log.error(
                "%s belongs to cluster %s, we are %s: it is not served",
                message.process,
                message.cluster_id,
                image.cluster_id,
            )
            return
        self._early[identity] = message
        self.admit(image)

    def admit(self, image: MetadataImage) -> None:
        """Serve those who have come too early and need not wait any more."""
        if not self._early or not self.is_serving:
            return
        for identity, message in list(self._early.items()):
            if message.offset <= image.offset or self._sets_back:
                del self._early[identity]
                self._admit(identity, message, image)

    def _admit(self, identity: bytes, message: SubscribeMetadata, image: MetadataImage) -> None:
        have = message.offset
        self._subscribers[identity] = _Subscriber(
            identity, message.process, message.incarnation, have
        )
        if have > image.offset or have == 0 or have < self._driver.first_index - 1:
            self.send(identity, [snapshot_of(image)])
            return
        while have < image.offset:
            entries = self._driver.entries_from(have + 1, image.offset + 1, _PUBLISH_BYTES_MAX)
            self.send(identity, [_records(entries)])
            have += len(entries)

    def applied(self, identity: bytes, message: MetadataApplied) -> None:
        """A process has carried metadata out."""
        follower = self._subscribers.get(identity)
        if follower is not None:
            follower.offset = max(follower.offset, message.offset)

    def dismiss(self, names: Container[str]) -> None:
        """These processes end and do not come back: nobody waits for them."""
        for identity, follower in list(self._subscribers.items()):
            if follower.name in names:
                del self._subscribers[identity]

    def expect(self, names: Iterable[str]) -> None:
        """From now on these are asked whether they are there."""
        self._liveness.expect(names)

    def publish(self, entries: Sequence[Entry]) -> None:
        """Tell everybody of committed entries."""
        if entries and self._subscribers:
            message = _records(entries)
            for identity in list(self._subscribers):
                self.send(identity, [message])

    def tell(self, message: FromController) -> None:
        """Say the same to everybody."""
        for identity in list(self._subscribers):
            self.send(identity, [message])

    def replace(self, image: MetadataImage) -> None:
        """Tell everybody everything: the log has begun anew from a snapshot."""
        message = snapshot_of(image)
        for identity in list(self._subscribers):
            self.send(identity, [message])

    def send(self, identity: bytes, messages: "list[FromController]") -> None:
        """Say something to one process."""
        try:
            self.socket.send_multipart((identity, encode(messages)), zmq.NOBLOCK)
        except zmq.ZMQError:
            # It is away. It will say where it stands when it returns; nobody waits for it till
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

"""What one broker decides about one partition it holds: who may write and read, what is committed.

Called by the worker before and after appends. The state is the partition's image, the topic's
min.insync.replicas and, on the leader, the log ends of the in-sync replicas as they were last heard
of. Nothing here reads a log; log ends are told by whoever wrote or fetched.

    event                       leader                                  follower
    ----------------------------------------------------------------------------------------
    the log has grown           log_appended: the high watermark may move   -
    a follower has fetched      follower_fetched: the same               -
    a new image                 follow: a new epoch forgets what the former leader had heard

Invariants: the high watermark never goes back while the leader epoch stays, never passes the
leader's log end, and covers only what every in-sync replica has. Without followers, the log end is
the high watermark.
"""

from odradek.cluster.metadata.image import PartitionImage
from odradek.protocol.errors import ErrorCode

ANY_EPOCH = -1
"""What a client sends that does not know the leader epoch."""


def check_leader(
    image: PartitionImage, broker_id: int, current_leader_epoch: int = ANY_EPOCH
) -> ErrorCode:
    """NONE if the broker leads in the epoch the client believes in (KIP-320).

    FENCED_LEADER_EPOCH if the client's epoch is over, UNKNOWN_LEADER_EPOCH if it has not begun
    here; only then is NOT_LEADER_OR_FOLLOWER looked at.
    """
    if current_leader_epoch != ANY_EPOCH:
        if current_leader_epoch < image.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > image.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if image.leader == broker_id else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check_read(
    image: PartitionImage, broker_id: int, current_leader_epoch: int, *, may_follow: bool
) -> ErrorCode:
    """NONE if the broker may serve a consumer: as `check_leader`, or, if it `may_follow`, as a
    follower in sync (KIP-392).

    OFFSET_NOT_AVAILABLE, upon which clients go back to the leader, if it follows out of sync: it
    may lack what is committed, and Kafka's clients would stay with it for minutes all the same.
    """
    code = check_leader(image, broker_id, current_leader_epoch)
    if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or not may_follow:
        return code
    if broker_id in image.in_sync_replicas:
        return ErrorCode.NONE
    return ErrorCode.OFFSET_NOT_AVAILABLE if broker_id in image.replicas else code


def has_enough_in_sync(image: PartitionImage, min_insync_replicas: int) -> bool:
    """Whether the ISR satisfies min.insync.replicas.

    A partition with fewer replicas than that is content with all it has, as in Kafka 4 (KIP-966).
    """
    return len(image.in_sync_replicas) >= min(min_insync_replicas, len(image.replicas))


class PartitionReplica:
    """The replica on `broker_id`. `high_watermark` is exclusive, as all ends are."""

    __slots__ = (
        "_broker_id",
        "_log_ends",
        "_min_insync_replicas",
        "high_watermark",
        "image",
        "proposed",
    )

    def __init__(
        self,
        broker_id: int,
        image: PartitionImage,
        *,
        min_insync_replicas: int,
        log_end_offset: int = 0,
        high_watermark: int = 0,
        proposed: tuple[int, ...] = (),
    ) -> None:
        self._broker_id = broker_id
        self._log_ends = {broker_id: log_end_offset}
        self._min_insync_replicas = min_insync_replicas
        self.image = image
        self.proposed = proposed
        """An ISR that the controller may have accepted without our knowing yet: whoever is in it
        may be elected, so that nothing is committed that it does not have."""
        self.high_watermark = high_watermark
        self._advance()

    @property
    def log_end_offset(self) -> int:
        """Where this broker's log ends."""
        return self._log_ends[self._broker_id]

    @property
    def broker_id(self) -> int:
        """The broker that has the replica."""
        return self._broker_id

    def end_of(self, broker_id: int) -> int:
        """How far that replica is known to be; -1 if it was not heard of in this epoch."""
        return self._log_ends.get(broker_id, -1)

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.image.leader == self._broker_id

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether the ISR satisfies min.insync.replicas."""
        return has_enough_in_sync(self.image, self._min_insync_replicas)

    def follow(self, image: PartitionImage, *, min_insync_replicas: int) -> int:
        """Take in what the metadata says now; the high watermark after it."""
        if image.leader_epoch != self.image.leader_epoch:
            # What was heard of the others was heard in another reign.
            self._log_ends = {self._broker_id: self._log_ends[self._broker_id]}
            self.proposed = ()
        self.image = image
        self._min_insync_replicas = min_insync_replicas
        return self._advance()

    def check_appended(self, end_offset: int) -> ErrorCode | None:
        """What to answer an append with acks=all that ends at `end_offset`; None: not yet.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND if it is everywhere, but the ISR has shrunk below what
        was asked.
        """
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark >= end_offset:
            return ErrorCode.NONE
        if not self.has_enough_in_sync and self._committed_end() >= end_offset:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return None

    def log_appended(self, log_end_offset: int) -> int:
        """This broker's log ends at `log_end_offset` now; the high watermark after it."""
        self._log_ends[self._broker_id] = log_end_offset
        return self._advance()

    def follower_fetched(self, broker_id: int, log_end_offset: int) -> int:
        """A follower has everything below `log_end_offset`; the high watermark after it."""
        if broker_id in self.image.replicas and broker_id != self._broker_id:
            self._log_ends[broker_id] = log_end_offset
        return self._advance()

    def _advance(self) -> int:
        # Below min.insync.replicas nothing more is committed: what is beyond might be lost
        # (KIP-966).
        if self.is_leader and self.has_enough_in_sync:
            self.high_watermark = max(self.high_watermark, self._committed_end())
        return self.high_watermark

    def _committed_end(self) -> int:
        """Below this every in-sync replica has everything; 0 while one has not been heard of."""
        ends = self._log_ends
        end = min((ends.get(replica, 0) for replica in self.image.in_sync_replicas), default=0)
        for replica in self.proposed:
            end = min(end, ends.get(replica, 0))
        return end

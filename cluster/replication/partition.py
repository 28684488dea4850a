"""One replica of a partition: who may write and read, and what is committed.

Called by the worker before and after appends. The state is the partition's image, the topic's
min.insync.replicas and, on the leader, the log end offsets of the replicas as last reported. It
does not read logs.

    event               on the leader                          on a follower
    ----------------------------------------------------------------------------------------
    log_appended        the high watermark may move            -
    follower_fetched    the high watermark may move            -
    update              a new epoch drops the reported offsets

Invariants: within a leader epoch the high watermark never goes back, never passes the leader's log
end offset, and covers only what every in-sync replica has. Without followers it is the log end
offset.
"""

from odradek.cluster.metadata.image import PartitionImage
from odradek.protocol.errors import ErrorCode

ANY_EPOCH = -1
"""Sent by clients that do not know the leader epoch."""


def check_leader(
    image: PartitionImage, broker_id: int, current_leader_epoch: int = ANY_EPOCH
) -> ErrorCode:
    """NONE if the broker leads in the client's leader epoch (KIP-320).

    FENCED_LEADER_EPOCH if the client's epoch is older, UNKNOWN_LEADER_EPOCH if it is newer; only
    then NOT_LEADER_OR_FOLLOWER.
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
    """NONE if the broker may serve a consumer: as leader, or, with `may_follow`, as an in-sync
    follower (KIP-392).

    OFFSET_NOT_AVAILABLE for a follower out of sync: it may lack committed records. The client then
    returns to the leader; otherwise it would stay for minutes.
    """
    code = check_leader(image, broker_id, current_leader_epoch)
    if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or not may_follow:
        return code
    if broker_id in image.in_sync_replicas:
        return ErrorCode.NONE
    return ErrorCode.OFFSET_NOT_AVAILABLE if broker_id in image.replicas else code


def has_enough_in_sync(image: PartitionImage, min_insync_replicas: int) -> bool:
    """Whether the ISR satisfies min.insync.replicas.

    A partition with fewer replicas than that needs all of them, as in Kafka 4 (KIP-966).
    """
    return len(image.in_sync_replicas) >= min(min_insync_replicas, len(image.replicas))


class PartitionReplica:
    """The replica on `broker_id`. `high_watermark` is exclusive, as all ends are."""

    __slots__ = (
        "_log_ends",
        "_min_insync_replicas",
        "broker_id",
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
        self.broker_id = broker_id
        self._log_ends = {broker_id: log_end_offset}
        self._min_insync_replicas = min_insync_replicas
        self.image = image
        self.proposed = proposed
        """An ISR that the controller may have accepted already. Its members may be elected, so the
        high watermark waits for them."""
        self.high_watermark = high_watermark
        self._advance()

    @property
    def log_end_offset(self) -> int:
        return self._log_ends[self.broker_id]

    def end_of(self, broker_id: int) -> int:
        """The log end offset of a replica; -1 if not reported in this epoch."""
        return self._log_ends.get(broker_id, -1)

    @property
    def is_leader(self) -> bool:
        return self.image.leader == self.broker_id

    @property
    def has_enough_in_sync(self) -> bool:
        return has_enough_in_sync(self.image, self._min_insync_replicas)

    def update(self, image: PartitionImage, *, min_insync_replicas: int) -> int:
        """Take over a new image; the high watermark after it."""
        if image.leader_epoch != self.image.leader_epoch:
            # The others' offsets were reported in another epoch.
            self._log_ends = {self.broker_id: self._log_ends[self.broker_id]}
            self.proposed = ()
        self.image = image
        self._min_insync_replicas = min_insync_replicas
        return self._advance()

    def check_appended(self, end_offset: int) -> ErrorCode | None:
        """The response to an acks=all append that ends at `end_offset`; None: not yet.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND if all in-sync replicas have it, but the ISR has shrunk
        below min.insync.replicas.
        """
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark >= end_offset:
            return ErrorCode.NONE
        if not self.has_enough_in_sync and self._committed_end() >= end_offset:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return None

    def log_appended(self, log_end_offset: int) -> int:
        """This broker's log ends at `log_end_offset`; the high watermark after it."""
        self._log_ends[self.broker_id] = log_end_offset
        return self._advance()

    def follower_fetched(self, broker_id: int, log_end_offset: int) -> int:
        """A follower has everything below `log_end_offset`; the high watermark after it."""
        if broker_id in self.image.replicas and broker_id != self.broker_id:
            self._log_ends[broker_id] = log_end_offset
        return self._advance()

    def _advance(self) -> int:
        # Below min.insync.replicas nothing is committed: it could be lost (KIP-966).
        if self.is_leader and self.has_enough_in_sync:
            self.high_watermark = max(self.high_watermark, self._committed_end())
        return self.high_watermark

    def _committed_end(self) -> int:
        """The offset below which every in-sync replica has everything; 0 while one is not known."""
        ends = self._log_ends
        end = min((ends.get(replica, 0) for replica in self.image.in_sync_replicas), default=0)
        for replica in self.proposed:
            end = min(end, ends.get(replica, 0))
        return end

"""The leader of a replicated partition: who is in sync, what is committed, who may be answered.

Pure: time comes in, and what is to be done goes out as an Outcome. The rules of writing, reading
and the high watermark are PartitionReplica's; here is what moves with time and followers' fetches.

    event                        what comes of it
    -----------------------------------------------------------------------------------------
    grew: our log ends later     the high watermark may move (alone in the ISR)
    park: an acks=all append     answered at once, or released by a later event
    fetched: a follower reached  high watermark; a proposal to take it into the ISR
    check: time has passed       appends that timed out; a proposal to put laggards out
    follow: a new image          proposal settled; lead lost: all appends are refused
    begun as a successor         the ISR proposed as it is, if others may have been proposed
    settled: the controller said proposal taken back, kept, or repeated later

A proposal (KIP-497) carries the epochs it was decided upon. One is under way at a time; until it is
known to have failed, its members hold the high watermark back as those of the ISR do. So nobody is
proposed whom the controller would refuse, such as who is about to stop. A follower is in sync if it
had everything within the last `lag_max_ms`; it comes in when it has reached the high watermark and
the start of the leader's epoch.

A process that goes on with a lead within its epoch is a successor: it does not know what the one
before it had proposed, and what may still be decided. Until the controller has said once more who
is in sync, under a new partition epoch that makes older proposals void, all replicas hold the high
watermark back.
"""

from collections import deque
from collections.abc import Container
from typing import Final, Generic, NamedTuple, TypeVar

from odradek.cluster.metadata.image import NO_LEADER, PartitionImage
from odradek.cluster.replication.partition import PartitionReplica
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER, Uuid

LAG_MAX_MS: Final = 10_000
"""replica.lag.time.max.ms as Kafka had it before 2.5; since then it is three times that."""
RETRY_MS: Final = 500

# What the controller knows better: its next image says what holds, and until then the proposal may.
_WAIT_FOR_IMAGE: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    }
)
_REFUSED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})

T = TypeVar("T")


def possible_isr(image: PartitionImage) -> tuple[int, ...]:
    """Whom a predecessor within the epoch may have proposed: nobody if all are in sync already.
    Whom it wanted to put out does no harm."""
    return image.replicas if set(image.replicas) != set(image.in_sync_replicas) else ()


class FollowerBroker:
    """A follower node as it was last heard of; shared by all partitions of one conversation, so
    that a fetch costs nothing for those in which nothing has changed."""

    __slots__ = ("broker_epoch", "broker_id", "fetch_ms")

    def __init__(self, broker_id: int, broker_epoch: int, fetch_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.fetch_ms = fetch_ms


class IsrProposal(NamedTuple):
    """The ISR wanted; with each member the broker epoch it fetched with (KIP-903), or -1."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class CompletedAppend(NamedTuple, Generic[T]):
    """An append that may be answered, with this code."""

    token: T
    code: ErrorCode


class LeaderEffects(NamedTuple, Generic[T]):
    """What an event brought."""

    has_high_watermark_moved: bool = False
    """The high watermark."""
    released: tuple[CompletedAppend[T], ...] = ()
    proposal: IsrProposal | None = None


class _DelayedAppend(NamedTuple, Generic[T]):
    end_offset: int
    deadline_ms: int
    token: T


class _FollowerProgress:
    """A follower's: since when it has not had everything, as far as that is known."""

    __slots__ = ("caught_up_ms", "contact", "fetch_ms", "leader_end", "log_start_offset")

    def __init__(self, caught_up_ms: int) -> None:
        self.caught_up_ms = caught_up_ms
        self.contact: FollowerBroker | None = None
        self.fetch_ms = caught_up_ms
        self.leader_end = 0
        """Where our log ended at its last fetch that said something of this partition."""
        self.log_start_offset = -1


class LeaderPartition(Generic[T]):
    """See the module. `T` is whatever its owner knows an append by."""

    __slots__ = (
        "_epoch_start_offset",
        "_followers",
        "_ineligible",
        "_is_successor",
        "_lag_max_ms",
        "_parked",
        "_pending",
        "_retry_ms",
        "_settled_ms",
        "partition",
        "replica",
        "topic_id",
    )

    def __init__(
        self,
        replica: PartitionReplica,
        topic_id: Uuid,
        partition: int,
        *,
        epoch_start_offset: int,
        now_ms: int,
        lag_max_ms: int = LAG_MAX_MS,
        ineligible: Container[int] = frozenset(),
    ) -> None:
        """`ineligible` are the brokers that come into no ISR now; its owner keeps it up to date.

        A `replica` that comes with something proposed already makes this a successor."""
        self.replica = replica
        self.topic_id = topic_id
        self.partition = partition
        self._epoch_start_offset = epoch_start_offset
        self._lag_max_ms = lag_max_ms
        self._ineligible = ineligible
        self._followers: dict[int, _FollowerProgress] = {}
        self._parked: deque[_DelayedAppend[T]] = deque()
        self._pending: IsrProposal | None = None
        self._retry_ms = 0
        self._settled_ms = now_ms
        self._track_followers(now_ms)
        self._is_successor = bool(replica.proposed)
        if self._is_successor:
            self._void_earlier_proposals(now_ms)

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self.replica.high_watermark

    @property
    def pending(self) -> IsrProposal | None:
        """The proposal under way."""
        return self._pending

    @property
    def has_parked(self) -> bool:
        """Whether an append waits."""
        return bool(self._parked)

    @property
    def deadline_ms(self) -> int:
        """When `check` has an append to refuse."""
        return min((parked.deadline_ms for parked in self._parked), default=NEVER)

    def park(self, token: T, end_offset: int, deadline_ms: int) -> ErrorCode | None:
        """What to answer an append with acks=all that ends at `end_offset`; None: an outcome will
        release it, at the latest `check` after its deadline."""
        code = self.replica.check_appended(end_offset)
        if code is None:
            self._parked.append(_DelayedAppend(end_offset, deadline_ms, token))
        return code

    def log_appended(self, log_end_offset: int) -> LeaderEffects[T]:
        """Our log ends there now."""
        replica = self.replica
        before, log_end_before = replica.high_watermark, replica.log_end_offset
        for broker_id, progress in self._followers.items():
            if progress.contact is not None and replica.end_of(broker_id) >= log_end_before:
                # It had everything until now; what it fetched last was an empty answer.
                progress.caught_up_ms = max(progress.caught_up_ms, progress.contact.fetch_ms)
        replica.log_appended(log_end_offset)
        return self._outcome(before)

    def follower_fetched(
        self, contact: FollowerBroker, offset: int, now_ms: int
    ) -> LeaderEffects[T]:
        """A follower has everything below `offset`."""
        replica = self.replica
        broker_id = contact.broker_id
        progress = self._followers.get(broker_id)
        if progress is None:
            return LeaderEffects()
        before = replica.high_watermark
        progress.contact = contact
        if offset >= replica.log_end_offset:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end:
            # All that was there when it fetched before (KAFKA-1530's rule).
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetch_ms)
        progress.fetch_ms = now_ms
        progress.leader_end = replica.log_end_offset
        replica.follower_fetched(broker_id, offset)
        proposal = None
        if broker_id not in replica.image.in_sync_replicas:
            proposal = self._propose_if(now_ms, joining=broker_id)
        return self._outcome(before, proposal)

    def log_start_changed(self, broker_id: int, log_start_offset: int) -> None:
        """A follower's log starts there."""
        progress = self._followers.get(broker_id)
        if progress is not None:
            progress.log_start_offset = log_start_offset

    def low_watermark(self, log_start_offset: int, alive: Container[int]) -> int:
        """Below this no live replica has anything any more; -1 if one has not been heard of. Our
        own log starts at `log_start_offset`."""
        return min(
            [
                log_start_offset,
                *(
                    progress.log_start_offset
                    for broker_id, progress in self._followers.items()
                    if broker_id in alive
                ),
            ]
        )

    def check(self, now_ms: int) -> LeaderEffects[T]:
        """Time has passed."""
        released: list[CompletedAppend[T]] = []
        if self._parked and self.deadline_ms <= now_ms:
            kept = deque[_DelayedAppend[T]]()
            for parked in self._parked:
                if parked.deadline_ms <= now_ms:
                    released.append(CompletedAppend(parked.token, ErrorCode.REQUEST_TIMED_OUT))
                else:
                    kept.append(parked)
            self._parked = kept
        return LeaderEffects(False, tuple(released), self._propose_if(now_ms))

    def follow(
        self,
        image: PartitionImage,
        *,
        min_insync_replicas: int,
        epoch_start_offset: int,
        now_ms: int,
    ) -> LeaderEffects[T]:
        """What the metadata says now."""
        replica = self.replica
        known, before = replica.image, replica.high_watermark
        told = (image.leader_epoch, image.partition_epoch)
        held = (known.leader_epoch, known.partition_epoch)
        if told < held:
            return LeaderEffects()
        if told != held:
            self._settled_ms = now_ms
            self._pending = None
            self._is_successor = False
            replica.proposed = ()
        if image.leader_epoch != known.leader_epoch:
            self._followers.clear()
            self._epoch_start_offset = epoch_start_offset
        replica.follow(image, min_insync_replicas=min_insync_replicas)
        if not replica.is_leader:
            return LeaderEffects(False, self.resign())
        self._track_followers(now_ms)
        return self._outcome(before, self._propose_if(now_ms))

    def resign(self) -> tuple[CompletedAppend[T], ...]:
        """The lead is lost, or the partition gone: whoever waits is told."""
        released = tuple(
            CompletedAppend(parked.token, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            for parked in self._parked
        )
        self._parked.clear()
        return released

    def settled(self, proposal: IsrProposal, code: ErrorCode, now_ms: int) -> None:
        """The controller answered, or (REQUEST_TIMED_OUT and the like) nobody knows what it did.

        Success comes with the image. What was refused is forgotten, and decided anew later."""
        if proposal != self._pending or code is ErrorCode.NONE or code in _WAIT_FOR_IMAGE:
            return
        self._retry_ms = now_ms + RETRY_MS
        if code in _REFUSED and not self._is_successor:
            self._settled_ms = now_ms
            self._pending = None
            self.replica.proposed = ()

    # -- inside ------------------------------------------------------------------------------------

    def _track_followers(self, now_ms: int) -> None:
        replica = self.replica
        others = [broker for broker in replica.image.replicas if broker != replica.broker_id]
        for broker_id in others:
            if broker_id not in self._followers:
                self._followers[broker_id] = _FollowerProgress(now_ms)
        for broker_id in self._followers.keys() - set(others):
            del self._followers[broker_id]

    def _void_earlier_proposals(self, now_ms: int) -> None:
        """Propose the ISR as it is, so that what a predecessor has proposed is decided or void."""
        image = self.replica.image
        members = tuple((broker, -1) for broker in image.in_sync_replicas)
        self._pending = IsrProposal(
            self.topic_id, self.partition, image.leader_epoch, image.partition_epoch, members
        )
        # Not sent yet, which is as good as lost.
        self._retry_ms = max(1, now_ms)

    def _propose_if(self, now_ms: int, joining: int = NO_LEADER) -> IsrProposal | None:
        """The proposal to be sent now: a new one, or again one whose fate is not known.

        Who may join has fetched since the last word of the controller: of others nobody knows
        whether they are alive."""
        if now_ms < self._retry_ms:
            return None
        if self._pending is not None:
            is_lost, self._retry_ms = self._retry_ms > 0, 0
            return self._pending if is_lost else None
        self._retry_ms = 0
        replica = self.replica
        image = replica.image
        in_sync = [
            broker
            for broker in image.replicas
            if broker == replica.broker_id
            or (
                not self._is_lagging(broker, now_ms)
                if broker in image.in_sync_replicas
                else self._may_join(broker, now_ms, has_fetched=broker == joining)
            )
        ]
        if set(in_sync) == set(image.in_sync_replicas):
            return None
        members = tuple((broker, self._broker_epoch(broker)) for broker in in_sync)
        self._pending = IsrProposal(
            self.topic_id, self.partition, image.leader_epoch, image.partition_epoch, members
        )
        replica.proposed = tuple(in_sync)
        return self._pending

    def _broker_epoch(self, broker_id: int) -> int:
        progress = self._followers.get(broker_id)
        if progress is None or progress.contact is None:
            return -1
        return progress.contact.broker_epoch

    def _is_lagging(self, broker_id: int, now_ms: int) -> bool:
        progress = self._followers.get(broker_id)
        if progress is None:
            return False
        caught_up_ms = progress.caught_up_ms
        if (
            progress.contact is not None
            and self.replica.end_of(broker_id) >= self.replica.log_end_offset
        ):
            caught_up_ms = max(caught_up_ms, progress.contact.fetch_ms)
        return now_ms - caught_up_ms > self._lag_max_ms

    def _may_join(self, broker_id: int, now_ms: int, *, has_fetched: bool) -> bool:
        end = self.replica.end_of(broker_id)
        progress = self._followers.get(broker_id)
        if progress is None or progress.contact is None:
            return False
        return (
            broker_id not in self._ineligible
            and (has_fetched or progress.contact.fetch_ms > self._settled_ms)
            and end >= self.replica.high_watermark
            and end >= self._epoch_start_offset
            and not self._is_lagging(broker_id, now_ms)
        )

    def _outcome(self, before: int, proposal: IsrProposal | None = None) -> LeaderEffects[T]:
        replica = self.replica
        released: list[CompletedAppend[T]] = []
        parked = self._parked
        while parked:
            code = replica.check_appended(parked[0].end_offset)
            if code is None:
                break
            released.append(CompletedAppend(parked.popleft().token, code))
        return LeaderEffects(replica.high_watermark > before, tuple(released), proposal)

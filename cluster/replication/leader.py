"""The leader of a replicated partition: the ISR, the high watermark, and delayed appends.

Pure: time comes in, effects go out as `LeaderEffects`. PartitionReplica has the rules of writing,
reading and the high watermark; this module has what changes with time and followers' fetches.

    event                        effects
    -----------------------------------------------------------------------------------------
    log_appended                 the high watermark may move (alone in the ISR)
    delay: an acks=all append    answered at once, or completed by a later event
    follower_fetched             the high watermark may move; the ISR may expand
    tick                         appends time out; the ISR may shrink
    update: a new image          the proposal is settled; after a lost lead all appends fail
    created as a successor       the current ISR is proposed, if others may have been proposed
    on_proposal_response         the proposal is withdrawn, kept, or sent again later

An AlterPartition proposal (KIP-497) carries the epochs it is based on. One is in flight at a time.
Until it is known to have failed, the high watermark waits for its members as for those of the ISR;
so brokers that the controller would refuse, such as those in controlled shutdown, are not proposed.
A follower is in sync if it had everything within the last `lag_max_ms`; it joins when it has
reached the high watermark and the start offset of the leader epoch.

A process that continues to lead in the same epoch is a successor: the process before it may have
made proposals that are still to be decided. Until the controller has confirmed the ISR under a new
partition epoch, which makes older proposals void, the high watermark waits for all replicas.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from odradek.cluster.metadata.image import NO_LEADER, PartitionImage
from odradek.cluster.replication.partition import PartitionReplica
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER, Uuid

LAG_MAX_MS: Final = 10_000
"""Kafka's replica.lag.time.max.ms before 2.5; since then it is 30 s."""
RETRY_MS: Final = 500

# The controller is ahead: wait for the next image. The proposal may still succeed.
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
    """The replicas that an earlier process in this epoch may have proposed: none if all are in
    sync. A proposal to shrink the ISR does no harm."""
    return image.replicas if set(image.replicas) != set(image.in_sync_replicas) else ()


@dataclass(slots=True)
class FollowerBroker:
    """A follower node and its last fetch. Shared by all partitions of its session, so that a fetch
    costs nothing for partitions without changes."""

    broker_id: int
    broker_epoch: int
    fetch_ms: int


class IsrProposal(NamedTuple):
    """The proposed ISR: pairs of broker id and the broker epoch of its fetches (KIP-903), or -1."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class CompletedAppend(NamedTuple, Generic[T]):
    """An append to answer with this code."""

    token: T
    code: ErrorCode


class LeaderEffects(NamedTuple, Generic[T]):
    """What follows from an event."""

    has_high_watermark_moved: bool = False
    released: tuple[CompletedAppend[T], ...] = ()
    proposal: IsrProposal | None = None


class _DelayedAppend(NamedTuple, Generic[T]):
    end_offset: int
    deadline_ms: int
    token: T


@dataclass(slots=True)
class _FollowerProgress:
    """What the leader knows of a follower."""

    caught_up_ms: int
    """When it last had everything."""
    fetch_ms: int
    broker: FollowerBroker | None = None
    leader_end: int = 0
    """Our log end offset at its last fetch of this partition."""
    log_start_offset: int = -1


class LeaderPartition(Generic[T]):
    """See the module's docstring. `T` identifies an append to the owner."""

    __slots__ = (
        "_changed_ms",
        "_delayed",
        "_epoch_start_offset",
        "_followers",
        "_ineligible",
        "_is_successor",
        "_retry_ms",
        "lag_max_ms",
        "partition",
        "pending",
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
        """`ineligible`: the brokers that may not join an ISR; the owner updates it. A `replica`
        with a `proposed` ISR makes this a successor."""
        self.replica = replica
        self.topic_id = topic_id
        self.partition = partition
        self._epoch_start_offset = epoch_start_offset
        self.lag_max_ms = lag_max_ms
        self._ineligible = ineligible
        self._followers: dict[int, _FollowerProgress] = {}
        self._delayed: deque[_DelayedAppend[T]] = deque()
        self.pending: IsrProposal | None = None
        """The proposal in flight."""
        self._retry_ms = 0
        self._changed_ms = now_ms
        self._track_followers(now_ms)
        self._is_successor = bool(replica.proposed)
        if self._is_successor:
            self._void_earlier_proposals(now_ms)

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed."""
        return self.replica.high_watermark

    @property
    def has_delayed(self) -> bool:
        return bool(self._delayed)

    @property
    def deadline_ms(self) -> int:
        return min((delayed.deadline_ms for delayed in self._delayed), default=NEVER)

    def delay(self, token: T, end_offset: int, deadline_ms: int) -> ErrorCode | None:
        """The response to an acks=all append that ends at `end_offset`; None if later effects will
        complete it, at the latest those of `tick` after its deadline."""
        code = self.replica.check_appended(end_offset)
        if code is None:
            self._delayed.append(_DelayedAppend(end_offset, deadline_ms, token))
        return code

    def log_appended(self, log_end_offset: int) -> LeaderEffects[T]:
        """Our log ends at `log_end_offset` now."""
        replica = self.replica
        before, log_end_before = replica.high_watermark, replica.log_end_offset
        for broker_id, progress in self._followers.items():
            if progress.broker is not None and replica.end_of(broker_id) >= log_end_before:
                # It had everything until now, and its last fetch was empty.
                progress.caught_up_ms = max(progress.caught_up_ms, progress.broker.fetch_ms)
        replica.log_appended(log_end_offset)
        return self._outcome(before)

    def follower_fetched(
        self, broker: FollowerBroker, offset: int, now_ms: int
    ) -> LeaderEffects[T]:
        """A follower has fetched from `offset`: it has everything below."""
        replica = self.replica
        broker_id = broker.broker_id
        progress = self._followers.get(broker_id)
        if progress is None:
            return LeaderEffects()
        before = replica.high_watermark
        progress.broker = broker
        if offset >= replica.log_end_offset:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end:
            # It has everything that existed at its previous fetch (KAFKA-1530).
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetch_ms)
        progress.fetch_ms = now_ms
        progress.leader_end = replica.log_end_offset
        replica.follower_fetched(broker_id, offset)
        proposal = None
        if broker_id not in replica.image.in_sync_replicas:
            proposal = self._propose_if(now_ms, joining=broker_id)
        return self._outcome(before, proposal)

    def log_start_changed(self, broker_id: int, log_start_offset: int) -> None:
        """A follower's log starts at `log_start_offset`."""
        progress = self._followers.get(broker_id)
        if progress is not None:
            progress.log_start_offset = log_start_offset

    def low_watermark(self, log_start_offset: int, alive: Container[int]) -> int:
        """The smallest log start offset of the live replicas, ours being `log_start_offset`; -1 if
        one is not known."""
        others = [
            progress.log_start_offset
            for broker_id, progress in self._followers.items()
            if broker_id in alive
        ]
        return min([log_start_offset, *others])

    def tick(self, now_ms: int) -> LeaderEffects[T]:
        """Time out appends, propose to shrink the ISR."""
        released: list[CompletedAppend[T]] = []
        if self._delayed and self.deadline_ms <= now_ms:
            kept = deque[_DelayedAppend[T]]()
            for delayed in self._delayed:
                if delayed.deadline_ms <= now_ms:
                    released.append(CompletedAppend(delayed.token, ErrorCode.REQUEST_TIMED_OUT))
                else:
                    kept.append(delayed)
            self._delayed = kept
        return LeaderEffects(False, tuple(released), self._propose_if(now_ms))

    def update(
        self,
        image: PartitionImage,
        *,
        min_insync_replicas: int,
        epoch_start_offset: int,
        now_ms: int,
    ) -> LeaderEffects[T]:
        """Take over a new image of the partition."""
        replica = self.replica
        known, before = replica.image, replica.high_watermark
        epochs = (image.leader_epoch, image.partition_epoch)
        known_epochs = (known.leader_epoch, known.partition_epoch)
        if epochs < known_epochs:
            return LeaderEffects()
        if epochs != known_epochs:
            self._changed_ms = now_ms
            self.pending = None
            self._is_successor = False
            replica.proposed = ()
        if image.leader_epoch != known.leader_epoch:
            self._followers.clear()
            self._epoch_start_offset = epoch_start_offset
        replica.update(image, min_insync_replicas=min_insync_replicas)
        if not replica.is_leader:
            return LeaderEffects(False, self.resign())
        self._track_followers(now_ms)
        return self._outcome(before, self._propose_if(now_ms))

    def resign(self) -> tuple[CompletedAppend[T], ...]:
        """The lead is lost or the partition deleted: fail all delayed appends."""
        released = tuple(
            CompletedAppend(delayed.token, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            for delayed in self._delayed
        )
        self._delayed.clear()
        return released

    def on_proposal_response(self, proposal: IsrProposal, code: ErrorCode, now_ms: int) -> None:
        """The controller's response, or REQUEST_TIMED_OUT if there was none.

        A success arrives with the next image. A refused proposal is withdrawn."""
        if proposal != self.pending or code is ErrorCode.NONE or code in _WAIT_FOR_IMAGE:
            return
        self._retry_ms = now_ms + RETRY_MS
        if code in _REFUSED and not self._is_successor:
            self._changed_ms = now_ms
            self.pending = None
            self.replica.proposed = ()

    # -- internal ----------------------------------------------------------------------------------

    def _track_followers(self, now_ms: int) -> None:
        replica = self.replica
        others = [broker for broker in replica.image.replicas if broker != replica.broker_id]
        for broker_id in others:
            if broker_id not in self._followers:
                self._followers[broker_id] = _FollowerProgress(now_ms, now_ms)
        for broker_id in self._followers.keys() - set(others):
            del self._followers[broker_id]

    def _void_earlier_proposals(self, now_ms: int) -> None:
        """Propose the current ISR: proposals of an earlier process are then decided or void."""
        self._propose([(broker, -1) for broker in self.replica.image.in_sync_replicas])
        # Not sent yet: handled like a lost proposal.
        self._retry_ms = max(1, now_ms)

    def _propose_if(self, now_ms: int, joining: int = NO_LEADER) -> IsrProposal | None:
        """The proposal to send now: a new one, or a lost one again.

        A follower may join only if it has fetched since the last change of the partition: others
        may be dead."""
        if now_ms < self._retry_ms:
            return None
        if self.pending is not None:
            is_lost, self._retry_ms = self._retry_ms > 0, 0
            return self.pending if is_lost else None
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
                else self._can_join(broker, now_ms, has_fetched=broker == joining)
            )
        ]
        if set(in_sync) == set(image.in_sync_replicas):
            return None
        replica.proposed = tuple(in_sync)
        return self._propose([(broker, self._broker_epoch(broker)) for broker in in_sync])

    def _propose(self, members: list[tuple[int, int]]) -> IsrProposal:
        image = self.replica.image
        self.pending = IsrProposal(
            self.topic_id, self.partition, image.leader_epoch, image.partition_epoch, tuple(members)
        )
        return self.pending

    def _broker_epoch(self, broker_id: int) -> int:
        progress = self._followers.get(broker_id)
        if progress is None or progress.broker is None:
            return -1
        return progress.broker.broker_epoch

    def _is_lagging(self, broker_id: int, now_ms: int) -> bool:
        progress = self._followers.get(broker_id)
        if progress is None:
            return False
        caught_up_ms = progress.caught_up_ms
        if (
            progress.broker is not None
            and self.replica.end_of(broker_id) >= self.replica.log_end_offset
        ):
            caught_up_ms = max(caught_up_ms, progress.broker.fetch_ms)
        return now_ms - caught_up_ms > self.lag_max_ms

    def _can_join(self, broker_id: int, now_ms: int, *, has_fetched: bool) -> bool:
        end = self.replica.end_of(broker_id)
        progress = self._followers.get(broker_id)
        if progress is None or progress.broker is None:
            return False
        return (
            broker_id not in self._ineligible
            and (has_fetched or progress.broker.fetch_ms > self._changed_ms)
            and end >= self.replica.high_watermark
            and end >= self._epoch_start_offset
            and not self._is_lagging(broker_id, now_ms)
        )

    def _outcome(self, before: int, proposal: IsrProposal | None = None) -> LeaderEffects[T]:
        replica = self.replica
        released: list[CompletedAppend[T]] = []
        delayed = self._delayed
        while delayed:
            code = replica.check_appended(delayed[0].end_offset)
            if code is None:
                break
            released.append(CompletedAppend(delayed.popleft().token, code))
        return LeaderEffects(replica.high_watermark > before, tuple(released), proposal)

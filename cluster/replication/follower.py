"""The follower's side of one conversation: what to ask a leader node next, and what answers mean.

Pure: time comes in, effects go out as a `FetchEffects`. One conversation has all partitions of one
store that one node leads. One request is under way at a time; a second one follows it if there is
something to tell meanwhile, upon which the leader ends the wait of the first. Every partition is in
one state:

    state       the leader         left by
    ---------------------------------------------------------------------------------------------
    READY       is to be told      next_request: FETCHING
    FETCHING    looks for news     records: BUSY; divergence: BUSY; an error: PAUSED or WAITING
    BUSY        waits for us       reached: READY; failed: PAUSED
    PAUSED      waits for us       time: READY
    WAITING     waits for us       follow with a newer epoch: READY

A follower asks from its log's end and names the epoch of its last record; a leader that knows this
epoch to end earlier says where (KIP-595, after KIP-101 and KIP-279), the follower cuts its log
there and asks again. What was fetched under a former handle is ignored.
"""

from enum import Enum
from typing import Final, NamedTuple

from odradek.cluster.replication.messages import (
    ReplicaFetchPartition,
    ReplicaFetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.cluster.replication.throttle import TokenBudget
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER, NO_EPOCH, NO_OFFSET, Uuid

BACK_OFF_MS: Final = 50
BACK_OFF_MS_MAX: Final = 1_000
"""replica.fetch.backoff.ms"""
RESPONSE_TIMEOUT_MS: Final = 5_000
"""How long after its wait a request may stay unanswered before the leader is taken to be gone."""


class FetchState(Enum):
    """See the module."""

    READY = "ready"
    FETCHING = "fetching"
    BUSY = "busy"
    PAUSED = "paused"
    WAITING = "waiting"


class FetchedPartition:
    """One partition as the conversation knows it."""

    __slots__ = (
        "failures",
        "fetch_offset",
        "handle",
        "is_known",
        "is_throttled",
        "last_epoch",
        "leader_end",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "resume_ms",
        "state",
        "topic_id",
    )

    def __init__(
        self,
        handle: int,
        topic_id: Uuid,
        partition: int,
        *,
        leader_epoch: int,
        fetch_offset: int,
        last_epoch: int,
        log_start_offset: int,
    ) -> None:
        self.handle = handle
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.fetch_offset = fetch_offset
        self.last_epoch = last_epoch
        self.log_start_offset = log_start_offset
        self.state = FetchState.READY
        self.is_known = False
        """Whether the leader's session has it under this handle."""
        self.is_throttled = False
        self.failures = 0
        self.resume_ms = 0
        self.leader_end = fetch_offset
        """The leader's log end as last heard: how much is still to come."""


class FetchedBatches(NamedTuple):
    """Append what stands at [start, start + byte_count) of the payload."""

    followed: FetchedPartition
    start: int
    byte_count: int


class Divergence(NamedTuple):
    """Cut the log: the leader's epoch `epoch` (-1: none is known) ends at `end_offset`."""

    followed: FetchedPartition
    epoch: int
    end_offset: int


class LogRestart(NamedTuple):
    """Forget the log and begin at the leader's start."""

    followed: FetchedPartition
    start_offset: int


class LeaderWatermarks(NamedTuple):
    """What the leader says of its partition; after the appends of the same answer."""

    followed: FetchedPartition
    high_watermark: int
    log_start_offset: int


class FetchEffects(NamedTuple):
    """What an answer brought. Appends, cuts and restarts are each to be reported back."""

    appends: tuple[FetchedBatches, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    restarts: tuple[LogRestart, ...] = ()
    watermarks: tuple[LeaderWatermarks, ...] = ()


_NOTHING: Final = FetchEffects()


def truncation_offset(
    divergence: Divergence, own_epoch: int, own_end: int, log_end_offset: int
) -> int:
    """Where to cut: `own_epoch`, `own_end` are the largest own epoch not above the leader's, and
    its end; both -1 if there is none.

    If we have no record of the leader's epoch, our records of the one before are asked about next;
    what is of later epochs cannot be the leader's (KIP-279).
    """
    end = min(divergence.end_offset, log_end_offset)
    return min(end, own_end) if own_epoch >= 0 else end


class ReplicaFetchSession:
    """See the module. `place` is what the owner knows the conversation by."""

    def __init__(
        self,
        *,
        cluster_id: str,
        broker_id: int,
        store: int,
        budget: TokenBudget,
        wait_ms_max: int = 500,
        bytes_max: int = 1 << 20,
    ) -> None:
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._store = store
        self._budget = budget
        self._wait_ms_max = wait_ms_max
        self._bytes_max = bytes_max
        self.broker_epoch = -1
        self._by_handle: dict[int, FetchedPartition] = {}
        self._by_identity: dict[tuple[Uuid, int], FetchedPartition] = {}
        self._next_handle = 0
        self._changed: dict[int, FetchedPartition] = {}
        """READY: to be told with the next request."""
        self._started: dict[int, FetchedPartition] = {}
        """Known to the leader, but not where their logs start now."""
        self._paused: dict[int, FetchedPartition] = {}
        self._forgotten: list[int] = []
        self._request_id = 0
        self._deadlines_ms: dict[int, int] = {}
        """Of the requests under way, by id."""
        self._is_connected = False
        self._must_be_full = True
        self._resume_ms = 0

    @property
    def partitions(self) -> tuple[FetchedPartition, ...]:
        """All that are followed here."""
        return tuple(self._by_handle.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to talk about."""
        return not self._by_handle and not self._forgotten

    def follow(
        self,
        topic_id: Uuid,
        partition: int,
        *,
        leader_epoch: int,
        fetch_offset: int,
        last_epoch: int,
        log_start_offset: int = NO_OFFSET,
        is_throttled: bool = False,
    ) -> FetchedPartition:
        """Follow the partition in this epoch, from our log's end; of one that is followed in the
        same epoch only the throttle may change."""
        known = self._by_identity.get((topic_id, partition))
        if known is not None:
            if known.leader_epoch == leader_epoch:
                known.is_throttled = is_throttled
                return known
            self.remove_partition(topic_id, partition)
        self._next_handle = handle = self._next_handle + 1
        followed = FetchedPartition(
            handle,
            topic_id,
            partition,
            leader_epoch=leader_epoch,
            fetch_offset=fetch_offset,
            last_epoch=last_epoch,
            log_start_offset=log_start_offset,
        )
        followed.is_throttled = is_throttled
        self._by_handle[handle] = self._by_identity[topic_id, partition] = followed
        self._changed[handle] = followed
        return followed

    def remove_partition(self, topic_id: Uuid, partition: int) -> FetchedPartition | None:
        """Follow it no more; what comes of it later is ignored."""
        followed = self._by_identity.pop((topic_id, partition), None)
        if followed is not None:
            del self._by_handle[followed.handle]
            self._changed.pop(followed.handle, None)
            self._paused.pop(followed.handle, None)
            self._started.pop(followed.handle, None)
            self._forgotten.append(followed.handle)
        return followed

    def is_current(self, followed: FetchedPartition) -> bool:
        """Whether it is still followed, under this handle."""
        return self._by_handle.get(followed.handle) is followed

    # -- asking ------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The leader's node can be talked to; whatever it knew of us may be gone."""
        self._is_connected = True
        self._start_over()

    def disconnected(self) -> None:
        """It cannot be talked to."""
        self._is_connected = False
        self._start_over()

    def next_request(self, now_ms: int) -> ReplicaFetchRequest | None:
        """What to send now; None while a request is under way, nobody is there, or there is nothing
        to ask for."""
        if self._deadlines_ms and now_ms >= next(iter(self._deadlines_ms.values())):
            self._start_over()
        if self._paused:
            self._resume(now_ms)
        if not self._is_connected or now_ms < self._resume_ms or not self._can_send(now_ms):
            return None
        if not self._by_handle and (self._must_be_full or not self._forgotten):
            self._forgotten.clear()
            return None
        is_full, self._must_be_full = self._must_be_full, False
        subscribed: list[ReplicaFetchPartition] = []
        reached: list[ReplicaFetchPosition] = []
        may_fetch_throttled = self._budget.available(now_ms)
        for handle, followed in list(self._changed.items()):
            if followed.is_throttled and not may_fetch_throttled:
                continue
            del self._changed[handle]
            if followed.is_known:
                reached.append(
                    ReplicaFetchPosition(handle, followed.fetch_offset, followed.last_epoch)
                )
            else:
                subscribed.append(
                    ReplicaFetchPartition(
                        handle,
                        followed.topic_id,
                        followed.partition,
                        followed.leader_epoch,
                        followed.fetch_offset,
                        followed.last_epoch,
                        followed.log_start_offset,
                    )
                )
                followed.is_known = True
                self._started.pop(handle, None)
            followed.state = FetchState.FETCHING
        forgotten = () if is_full else tuple(self._forgotten)
        self._forgotten.clear()
        log_starts = tuple(
            (handle, followed.log_start_offset)
            for handle, followed in self._started.items()
            if followed.is_known
        )
        self._started.clear()
        self._request_id += 1
        wait_ms = self._wait_ms_max
        if self._changed:
            wait_ms = min(wait_ms, max(1, self._budget.next_ms(now_ms) - now_ms))
        self._deadlines_ms[self._request_id] = now_ms + wait_ms + RESPONSE_TIMEOUT_MS
        return ReplicaFetchRequest(
            self._request_id,
            self._cluster_id,
            self._broker_id,
            self.broker_epoch,
            self._store,
            is_full,
            tuple(subscribed),
            tuple(reached),
            forgotten,
            wait_ms,
            self._bytes_max,
            log_starts=log_starts,
        )

    def next_ms(self, now_ms: int) -> int:
        """When to call `next_request` again if nothing else happens."""
        if not self._is_connected:
            return NEVER
        due = min((followed.resume_ms for followed in self._paused.values()), default=NEVER)
        if self._deadlines_ms:
            return min(due, next(iter(self._deadlines_ms.values())))
        return min(due, max(now_ms, self._resume_ms)) if not self.is_empty else NEVER

    # -- answers -----------------------------------------------------------------------------------

    def answered(self, answer: ReplicaFetchResponse, now_ms: int) -> FetchEffects:
        """An answer has come, the batches of its partitions behind it in their order."""
        if self._deadlines_ms.pop(answer.request_id, None) is None:
            return _NOTHING
        if answer.error_code:
            self._start_over()
            if answer.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._resume_ms = now_ms + BACK_OFF_MS_MAX
            return _NOTHING
        appends: list[FetchedBatches] = []
        divergences: list[Divergence] = []
        restarts: list[LogRestart] = []
        watermarks: list[LeaderWatermarks] = []
        at = 0
        for fetched in answer.partitions:
            start, at = at, at + fetched.byte_count
            followed = self._by_handle.get(fetched.handle)
            if followed is None or followed.state is not FetchState.FETCHING:
                continue
            if followed.is_throttled:
                self._budget.spend(fetched.byte_count, now_ms)
            code = fetched.error_code
            if code == ErrorCode.NONE:
                followed.leader_end = fetched.log_end_offset
                if fetched.diverging_end != NO_OFFSET:
                    followed.state = FetchState.BUSY
                    divergences.append(
                        Divergence(followed, fetched.diverging_epoch, fetched.diverging_end)
                    )
                    continue
                followed.failures = 0
                if fetched.byte_count:
                    followed.state = FetchState.BUSY
                    appends.append(FetchedBatches(followed, start, fetched.byte_count))
                watermarks.append(
                    LeaderWatermarks(followed, fetched.high_watermark, fetched.log_start_offset)
                )
            elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(followed, fetched, divergences, restarts)
            elif code == ErrorCode.FENCED_LEADER_EPOCH:
                followed.state = FetchState.WAITING
            else:
                self._pause(followed, now_ms)
        return FetchEffects(tuple(appends), tuple(divergences), tuple(restarts), tuple(watermarks))

    def reached(self, followed: FetchedPartition, log_end_offset: int, last_epoch: int) -> None:
        """The log was appended to, cut or restarted, and ends there now."""
        if self.is_current(followed):
            followed.fetch_offset = log_end_offset
            followed.last_epoch = last_epoch
            followed.state = FetchState.READY
            self._changed[followed.handle] = followed

    def log_start_changed(self, followed: FetchedPartition, log_start_offset: int) -> None:
        """The log starts there now, which the leader is told without delay: somebody may wait for
        it."""
        if self.is_current(followed) and followed.log_start_offset != log_start_offset:
            followed.log_start_offset = log_start_offset
            if followed.is_known:
                self._started[followed.handle] = followed

    def failed(self, followed: FetchedPartition, now_ms: int) -> None:
        """What was to be done could not be; it is asked for again in a while."""
        if self.is_current(followed):
            self._pause(followed, now_ms)

    # -- inside ------------------------------------------------------------------------------------

    def _out_of_range(
        self,
        followed: FetchedPartition,
        fetched: ReplicaPartitionData,
        divergences: list[Divergence],
        restarts: list[LogRestart],
    ) -> None:
        followed.state = FetchState.BUSY
        if followed.fetch_offset > fetched.log_end_offset:
            divergences.append(Divergence(followed, NO_EPOCH, fetched.log_end_offset))
        else:
            restarts.append(LogRestart(followed, fetched.log_start_offset))

    def _pause(self, followed: FetchedPartition, now_ms: int) -> None:
        followed.state = FetchState.PAUSED
        followed.is_known = False
        back_off_ms = min(BACK_OFF_MS << min(followed.failures, 10), BACK_OFF_MS_MAX)
        followed.failures += 1
        followed.resume_ms = now_ms + back_off_ms
        self._changed.pop(followed.handle, None)
        self._paused[followed.handle] = followed

    def _resume(self, now_ms: int) -> None:
        due = [followed for followed in self._paused.values() if followed.resume_ms <= now_ms]
        for followed in due:
            del self._paused[followed.handle]
            followed.state = FetchState.READY
            self._changed[followed.handle] = followed

    def _start_over(self) -> None:
        """The leader knows nothing of us: tell it everything with the next request."""
        self._deadlines_ms.clear()
        self._must_be_full = True
        self._forgotten.clear()
        for followed in self._by_handle.values():
            followed.is_known = False
            if followed.state is FetchState.FETCHING:
                followed.state = FetchState.READY
                self._changed[followed.handle] = followed

    def _can_send(self, now_ms: int) -> bool:
        """Nothing is under way, or one request that may wait while there is something to tell."""
        under_way = len(self._deadlines_ms)
        if under_way != 1:
            return under_way == 0
        if self._started:
            return True
        may_fetch_throttled = self._budget.available(now_ms)
        return any(
            may_fetch_throttled or not followed.is_throttled for followed in self._changed.values()
        )

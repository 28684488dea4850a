"""The follower's side of a replica fetch session (Kafka: AbstractFetcherThread).

Pure: time comes in, effects go out as `FetchEffects`. A session has all partitions of one store
that one node leads. One request is in flight; a second one follows if there is something new, upon
which the leader answers the first at once. Every partition is in one state:

    state       in the next request   left by
    ---------------------------------------------------------------------------------------------
    READY       yes                   next_request: FETCHING
    FETCHING    known to the leader   records, divergence: APPLYING; an error: DELAYED or FENCED
    APPLYING    no                    position_changed: READY; failed: DELAYED
    DELAYED     no                    time: READY
    FENCED      no                    add_partition with a newer epoch: READY

A follower fetches from its log end offset and names the leader epoch of its last record. A leader
on whose log this epoch ends earlier returns that offset (KIP-595, after KIP-101 and KIP-279). The
follower truncates there and fetches again. Responses under an old handle are ignored.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from odradek.cluster.replication.messages import (
    ReplicaFetchPartition,
    ReplicaFetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from odradek.cluster.replication.throttle import TokenBudget
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER, NO_EPOCH, NO_OFFSET, Uuid

BACK_OFF_MS: Final = 50
BACK_OFF_MS_MAX: Final = 1_000
"""replica.fetch.backoff.ms"""
WAIT_MS_MAX: Final = 500
"""replica.fetch.wait.max.ms"""
RESPONSE_TIMEOUT_MS: Final = 5_000
"""After the wait of a request. Then the session is started over."""


class FetchState(Enum):
    READY = "ready"
    FETCHING = "fetching"
    APPLYING = "applying"
    DELAYED = "delayed"
    FENCED = "fenced"


@dataclass(slots=True, eq=False, kw_only=True)
class FetchedPartition:
    """One partition of a session. Offsets are exclusive ends."""

    handle: int
    topic_id: Uuid
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    """The leader epoch of our last record."""
    log_start_offset: int
    is_throttled: bool = False
    state: FetchState = FetchState.READY
    is_known: bool = False
    """Whether the leader's session has it under this handle."""
    failures: int = 0
    resume_ms: int = 0
    leader_end: int = 0
    """The leader's log end offset in its last response: the lag is up to there."""


class FetchedBatches(NamedTuple):
    """Append the batches at [start, start + byte_count) of the payload."""

    followed: FetchedPartition
    start: int
    byte_count: int


class Divergence(NamedTuple):
    """Truncate the log: on the leader, `epoch` (-1: no epoch is known) ends at `end_offset`."""

    followed: FetchedPartition
    epoch: int
    end_offset: int


class LogRestart(NamedTuple):
    """Truncate the log fully and start at the leader's log start offset."""

    followed: FetchedPartition
    start_offset: int


class LeaderWatermarks(NamedTuple):
    """The leader's offsets, to be applied after the appends of the same response."""

    followed: FetchedPartition
    high_watermark: int
    log_start_offset: int


class FetchEffects(NamedTuple):
    """What to do after a response. For each append, truncation and restart, `position_changed` or
    `failed` has to follow."""

    appends: tuple[FetchedBatches, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    restarts: tuple[LogRestart, ...] = ()
    watermarks: tuple[LeaderWatermarks, ...] = ()


_NOTHING: Final = FetchEffects()


def truncation_offset(
    divergence: Divergence, own_epoch: int, own_end: int, log_end_offset: int
) -> int:
    """The truncation offset. `own_epoch` and `own_end` are our largest epoch that is not above the
    leader's, and its end offset; both -1 if there is none.

    Records of later epochs than the leader's cannot be on its log. If we have none of the leader's
    epoch, the next fetch asks about the one before (KIP-279).
    """
    end = min(divergence.end_offset, log_end_offset)
    return min(end, own_end) if own_epoch >= 0 else end


class ReplicaFetchSession:
    def __init__(
        self,
        *,
        cluster_id: str,
        broker_id: int,
        store: int,
        budget: TokenBudget,
    ) -> None:
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._store = store
        self._budget = budget
        self.broker_epoch = -1
        self._by_handle: dict[int, FetchedPartition] = {}
        self._by_identity: dict[tuple[Uuid, int], FetchedPartition] = {}
        self._next_handle = 0
        self._changed: dict[int, FetchedPartition] = {}
        """READY: in the next request."""
        self._started: dict[int, FetchedPartition] = {}
        """The leader knows an old log start offset of these."""
        self._delayed: dict[int, FetchedPartition] = {}
        self._forgotten: list[int] = []
        self._request_id = 0
        self._deadlines_ms: dict[int, int] = {}
        """Of the requests in flight, by id."""
        self._is_connected = False
        self._must_be_full = True
        self._resume_ms = 0

    @property
    def partitions(self) -> tuple[FetchedPartition, ...]:
        """All partitions of the session."""
        return tuple(self._by_handle.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fetch or to forget."""
        return not self._by_handle and not self._forgotten

    def add_partition(
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
        """Fetch the partition in this leader epoch, from our log end offset. If it is fetched in
        the same epoch already, only the throttle changes."""
        known = self._by_identity.get((topic_id, partition))
        if known is not None:
            if known.leader_epoch == leader_epoch:
                known.is_throttled = is_throttled
                return known
            self.remove_partition(topic_id, partition)
        self._next_handle = handle = self._next_handle + 1
        followed = FetchedPartition(
            handle=handle,
            topic_id=topic_id,
            partition=partition,
            leader_epoch=leader_epoch,
            fetch_offset=fetch_offset,
            last_epoch=last_epoch,
            log_start_offset=log_start_offset,
            is_throttled=is_throttled,
            leader_end=fetch_offset,
        )
        self._by_handle[handle] = self._by_identity[topic_id, partition] = followed
        self._changed[handle] = followed
        return followed

    def remove_partition(self, topic_id: Uuid, partition: int) -> None:
        """Stop fetching the partition. Later responses for it are ignored."""
        followed = self._by_identity.pop((topic_id, partition), None)
        if followed is not None:
            del self._by_handle[followed.handle]
            self._changed.pop(followed.handle, None)
            self._delayed.pop(followed.handle, None)
            self._started.pop(followed.handle, None)
            self._forgotten.append(followed.handle)

    def is_current(self, followed: FetchedPartition) -> bool:
        """Whether it is still fetched, under this handle."""
        return self._by_handle.get(followed.handle) is followed

    # -- requests ----------------------------------------------------------------------------------

    def connected(self) -> None:
        """The leader's node is connected. Its session may be gone."""
        self._is_connected = True
        self._start_over()

    def disconnected(self) -> None:
        self._is_connected = False
        self._start_over()

    def next_request(self, now_ms: int) -> ReplicaFetchRequest | None:
        """The request to send now. None while one is in flight, without a connection, or if there
        is nothing to fetch."""
        if self._deadlines_ms and now_ms >= next(iter(self._deadlines_ms.values())):
            self._start_over()
        if self._delayed:
            self._resume(now_ms)
        if not self._is_connected or now_ms < self._resume_ms or not self._can_send(now_ms):
            return None
        if not self._by_handle and (self._must_be_full or not self._forgotten):
            self._forgotten.clear()
            return None
        is_full, self._must_be_full = self._must_be_full, False
        forgotten = () if is_full else tuple(self._forgotten)
        self._forgotten.clear()
        added, positions = self._take_changed(now_ms)
        log_starts = tuple(
            (handle, followed.log_start_offset)
            for handle, followed in self._started.items()
            if followed.is_known
        )
        self._started.clear()
        self._request_id += 1
        wait_ms = WAIT_MS_MAX
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
            tuple(added),
            tuple(positions),
            forgotten,
            wait_ms,
            log_starts=log_starts,
        )

    def _take_changed(
        self, now_ms: int
    ) -> tuple[list[ReplicaFetchPartition], list[ReplicaFetchPosition]]:
        """The READY partitions, which become FETCHING: new ones whole, known ones by position.
        Throttled ones stay while there is no budget."""
        added: list[ReplicaFetchPartition] = []
        positions: list[ReplicaFetchPosition] = []
        may_fetch_throttled = self._budget.available(now_ms)
        for handle, followed in list(self._changed.items()):
            if followed.is_throttled and not may_fetch_throttled:
                continue
            del self._changed[handle]
            followed.state = FetchState.FETCHING
            if followed.is_known:
                positions.append(
                    ReplicaFetchPosition(handle, followed.fetch_offset, followed.last_epoch)
                )
                continue
            added.append(
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
        return added, positions

    def next_ms(self, now_ms: int) -> int:
        """When to call `next_request` again if nothing else happens."""
        if not self._is_connected:
            return NEVER
        due = min((followed.resume_ms for followed in self._delayed.values()), default=NEVER)
        if self._deadlines_ms:
            return min(due, next(iter(self._deadlines_ms.values())))
        return min(due, max(now_ms, self._resume_ms)) if not self.is_empty else NEVER

    # -- responses ---------------------------------------------------------------------------------

    def handle_response(self, response: ReplicaFetchResponse, now_ms: int) -> FetchEffects:
        """A response has arrived. Its payload has the batches of its partitions in their order."""
        if self._deadlines_ms.pop(response.request_id, None) is None:
            return _NOTHING
        if response.error_code:
            self._start_over()
            if response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._resume_ms = now_ms + BACK_OFF_MS_MAX
            return _NOTHING
        appends: list[FetchedBatches] = []
        divergences: list[Divergence] = []
        restarts: list[LogRestart] = []
        watermarks: list[LeaderWatermarks] = []
        at = 0
        for fetched in response.partitions:
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
                    followed.state = FetchState.APPLYING
                    divergences.append(
                        Divergence(followed, fetched.diverging_epoch, fetched.diverging_end)
                    )
                    continue
                followed.failures = 0
                if fetched.byte_count:
                    followed.state = FetchState.APPLYING
                    appends.append(FetchedBatches(followed, start, fetched.byte_count))
                watermarks.append(
                    LeaderWatermarks(followed, fetched.high_watermark, fetched.log_start_offset)
                )
            elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
                followed.state = FetchState.APPLYING
                if followed.fetch_offset > fetched.log_end_offset:
                    divergences.append(Divergence(followed, NO_EPOCH, fetched.log_end_offset))
                else:
                    restarts.append(LogRestart(followed, fetched.log_start_offset))
            elif code == ErrorCode.FENCED_LEADER_EPOCH:
                followed.state = FetchState.FENCED
            else:
                self._delay(followed, now_ms)
        return FetchEffects(tuple(appends), tuple(divergences), tuple(restarts), tuple(watermarks))

    def position_changed(
        self, followed: FetchedPartition, log_end_offset: int, last_epoch: int
    ) -> None:
        """The log was appended to, truncated or restarted, and ends there now."""
        if self.is_current(followed):
            followed.fetch_offset = log_end_offset
            followed.last_epoch = last_epoch
            followed.state = FetchState.READY
            self._changed[followed.handle] = followed

    def log_start_changed(self, followed: FetchedPartition, log_start_offset: int) -> None:
        """The log starts there now. Sent with the next request, which is due at once, because a
        DeleteRecords may wait for it."""
        if self.is_current(followed) and followed.log_start_offset != log_start_offset:
            followed.log_start_offset = log_start_offset
            if followed.is_known:
                self._started[followed.handle] = followed

    def failed(self, followed: FetchedPartition, now_ms: int) -> None:
        """An append, truncation or restart failed: fetch again after a delay."""
        if self.is_current(followed):
            self._delay(followed, now_ms)

    # -- internal ----------------------------------------------------------------------------------

    def _delay(self, followed: FetchedPartition, now_ms: int) -> None:
        followed.state = FetchState.DELAYED
        followed.is_known = False
        back_off_ms = min(BACK_OFF_MS << min(followed.failures, 10), BACK_OFF_MS_MAX)
        followed.failures += 1
        followed.resume_ms = now_ms + back_off_ms
        self._changed.pop(followed.handle, None)
        self._delayed[followed.handle] = followed

    def _resume(self, now_ms: int) -> None:
        due = [followed for followed in self._delayed.values() if followed.resume_ms <= now_ms]
        for followed in due:
            del self._delayed[followed.handle]
            followed.state = FetchState.READY
            self._changed[followed.handle] = followed

    def _start_over(self) -> None:
        """The leader has no session of ours: send all partitions with the next request."""
        self._deadlines_ms.clear()
        self._must_be_full = True
        self._forgotten.clear()
        for followed in self._by_handle.values():
            followed.is_known = False
            if followed.state is FetchState.FETCHING:
                followed.state = FetchState.READY
                self._changed[followed.handle] = followed

    def _can_send(self, now_ms: int) -> bool:
        """Whether no request is in flight, or one and there is something new."""
        under_way = len(self._deadlines_ms)
        if under_way != 1:
            return under_way == 0
        if self._started:
            return True
        may_fetch_throttled = self._budget.available(now_ms)
        return any(
            may_fetch_throttled or not followed.is_throttled for followed in self._changed.values()
        )

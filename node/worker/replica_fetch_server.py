"""The serving side of replication: responses to followers of other nodes.

A follower node has one fetch session per store, with its partitions and positions. A request is
answered when there are records, an error or a divergence for it; when a high watermark has moved
and nothing else came within a few milliseconds; or when its wait time is over. After records of a
partition were sent, nothing more is sent of it until the follower reports its new position. A
follower may know a leader epoch, or that it has a replica at all, before this node does. It gets
no error: it is checked again with the next image, because producers wait for it, and because it
reports its position only once.

Only changed partitions are processed: those whose follower reported, and those that were appended
to. Batches are read like a consumer's, without decoding them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from odradek.cluster.replication.leader import FollowerBroker, LeaderEffects, LeaderPartition
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.cluster.replication.partition import check_leader
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.replica_link import (
    ReplicaListener,
    requests,
    send_relayed,
    send_response,
)
from odradek.node.structured_log import get_logger
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.turn_requests import DelayedProduce
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader

log = get_logger(__name__)

WATERMARK_LINGER_MS = 5
"""How long a new high watermark may wait for records to be sent with it."""
SESSION_TIMEOUT_MS = 60_000
"""A session without requests for this long is removed."""
BATCHES_PER_RESPONSE_MAX = 1_000
"""Meanwhile nobody else is served: 2 ms here, some 10 at the follower, which appends them in one
turn (replica_fetchers.py). It asks for the rest at once."""
_HEAD = bytes(PAYLOAD_HEAD)

Leaders = Mapping[PartitionLocation, LeaderPartition[DelayedProduce]]
OnFollowerLogStart = Callable[[PartitionLocation, int, int], None]
"""Called with the location, the follower's broker id and its log start offset."""
OnFollowerProgress = Callable[[PartitionLocation, LeaderEffects[DelayedProduce]], None]
"""Called with the location and the outcome of a follower's progress."""


@dataclass(slots=True, eq=False)
class _CachedPartition:
    """One partition of a session. `offset` is the follower's log end."""

    handle: int
    location: PartitionLocation | None
    leader_epoch: int
    offset: int
    last_epoch: int
    sent_high_watermark: int = -1
    """The high watermark that was sent last."""
    awaits_position: bool = False
    """Whether the follower must report its position before more is sent."""
    is_early: bool = False
    """Whether the follower's leader epoch is newer than the image of this node."""
    is_stranger: bool = False
    """Whether the image of this node does not have the follower's replica."""


@dataclass(slots=True, eq=False)
class _FetchSession:
    """One follower's session for a store."""

    identity: bytes
    broker: FollowerBroker
    partitions: dict[int, _CachedPartition] = field(default_factory=dict)
    """By handle."""
    ready: dict[int, None] = field(default_factory=dict)
    """Handles of partitions that may have records to send, in the order of sending."""
    errors: dict[int, ReplicaPartitionData] = field(default_factory=dict)
    """Errors and divergences to send, by handle."""
    moved_watermarks: dict[int, None] = field(default_factory=dict)
    """Handles whose high watermark has moved."""
    watermark_deadline_ms: int = NEVER
    delayed_fetch: ReplicaFetchRequest | None = None
    """A request that waits for data."""
    fetch_deadline_ms: int = NEVER


@dataclass(slots=True, eq=False)
class _Response:
    """A response that is being filled. `holds` keeps the segments that the batches are views of."""

    parts: list[ReplicaPartitionData]
    bytes_left: int
    batches_left: int = BATCHES_PER_RESPONSE_MAX
    batches: list[bytes | memoryview] = field(default_factory=list)
    holds: list[object] = field(default_factory=list)


class ReplicaFetchServer:
    """The sessions of all followers with one worker, and their socket. Without a socket no follower
    can connect."""

    def __init__(
        self,
        listener: ReplicaListener | None,
        partitions: HostedPartitions,
        leaders: Leaders,
        *,
        cluster_id: str,
        node_id: int,
        on_outcome: OnFollowerProgress,
        on_log_start: OnFollowerLogStart,
        on_relay: Callable[[bytes, bytes], None],
        open_reader: Callable[[int], StoreReader],
        budget: TokenBudget,
    ) -> None:
        """`on_relay` is called with (identity, payload) of a request of another node's router."""
        self._listener = listener
        self._socket = None if listener is None else listener.socket
        self._partitions = partitions
        self._leaders = leaders
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._on_outcome = on_outcome
        self._on_log_start = on_log_start
        self._on_relay = on_relay
        self._open_reader = open_reader
        self._readers: dict[int, StoreReader] = {}
        self._budget = budget
        self._sessions: dict[tuple[bytes, int], _FetchSession] = {}
        """By the follower's identity and the store."""
        self._by_location: dict[
            PartitionLocation, list[tuple[_FetchSession, _CachedPartition]]
        ] = {}
        self.sent_bytes = 0
        """Bytes of batches sent to followers."""

    def receive(self, now_ms: int) -> None:
        """Receive requests, which `answer` answers."""
        if self._socket is not None:
            for identity, fetch in requests(self._socket, on_relay=self._on_relay):
                self._on_fetch(identity, fetch, now_ms)

    def send_relayed_response(self, identity: bytes, payload: bytes) -> None:
        """Send this node's router's response to a relayed request."""
        if self._socket is not None:
            send_relayed(self._socket, identity, payload)

    def grown(self, locations: Iterable[PartitionLocation]) -> None:
        """These partitions were appended to."""
        for location in locations:
            for session, cached in self._by_location.get(location, ()):
                if not cached.awaits_position:
                    session.ready[cached.handle] = None

    def moved(self, location: PartitionLocation, now_ms: int) -> None:
        """The high watermark or the log start of this partition has changed."""
        for session, cached in self._by_location.get(location, ()):
            if cached.awaits_position:
                # The follower's log end is not known: it diverges, or was just sent records. It
                # gets the high watermark after it has reported its position.
                cached.sent_high_watermark = -1
            else:
                self._note_moved_watermark(session, cached, now_ms)

    def stop_leading(self, location: PartitionLocation) -> None:
        """This partition is not led here any more, or in another epoch. Its followers must
        subscribe again, except those that have done so for the new epoch."""
        cached_here = self._by_location.pop(location, [])
        early = [(session, cached) for session, cached in cached_here if cached.is_early]
        if early:
            self._by_location[location] = early
        for session, cached in cached_here:
            session.ready.pop(cached.handle, None)
            session.moved_watermarks.pop(cached.handle, None)
            if not cached.awaits_position:
                cached.awaits_position = True
                code = self._leader_error(cached) or ErrorCode.NOT_LEADER_OR_FOLLOWER
                session.errors[cached.handle] = _error(cached, code)

    def recheck_early_followers(self, location: PartitionLocation, now_ms: int) -> None:
        """Check the early followers of this partition again, after a new image."""
        for session, cached in list(self._by_location.get(location, ())):
            # One that was sent records reports its position itself.
            if cached.is_early or (cached.is_stranger and not cached.awaits_position):
                self._on_position(session, cached, now_ms)

    def answer(self, now_ms: int) -> None:
        """Answer the requests that have data or whose wait time is over."""
        for key, session in list(self._sessions.items()):
            if session.delayed_fetch is None:
                if now_ms - session.broker.fetch_ms > SESSION_TIMEOUT_MS:
                    self._drop(key)
                continue
            is_due = now_ms >= session.fetch_deadline_ms or (
                bool(session.moved_watermarks) and now_ms >= session.watermark_deadline_ms
            )
            if is_due or session.errors or session.ready:
                is_connected = self._answer(session, session.delayed_fetch, now_ms, is_due=is_due)
                if not is_connected:
                    self._drop(key)

    def next_ms(self, now_ms: int) -> int:
        """When `answer` must be called next."""
        due = NEVER
        for session in self._sessions.values():
            if session.delayed_fetch is not None:
                due = min(due, session.fetch_deadline_ms)
                if session.ready:
                    due = min(due, max(now_ms + 1, self._budget.next_ms(now_ms)))
                if session.moved_watermarks:
                    due = min(due, session.watermark_deadline_ms)
        return due

    @property
    def authenticator(self) -> "zmq.Socket[bytes] | None":
        """A socket to poll; then call `authenticate`."""
        return None if self._listener is None else self._listener.authenticator

    @property
    def refused_count(self) -> int:
        """Connections without the key of the cluster."""
        return 0 if self._listener is None else self._listener.refused_count

    def authenticate(self) -> None:
        """Decide on clients that connect."""
        if self._listener is not None:
            self._listener.tick()

    def change_keys(
        self, keys: Sequence[KeyPair]
    ) -> tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"] | None:
        """Listen with the first of these keys. Returns the former socket, which is closed, and the
        new one; None if the key is the same. Followers connect again, and begin new sessions."""
        former = self._listener.change_keys(keys) if self._listener is not None else None
        if self._listener is None or former is None:
            return None
        self._socket = self._listener.socket
        return former, self._socket

    def release_dropped_segments(self) -> None:
        """Close the files of segments that were dropped, so that their disk space is freed. To be
        called regularly: a store from which nothing is fetched has no reads."""
        for reader in self._readers.values():
            # The next read reports the error.
            with suppress(StorageError):
                reader.refresh()

    def close(self) -> None:
        """Close the sockets and the readers."""
        if self._listener is not None:
            self._listener.close()
        for reader in self._readers.values():
            reader.close()

    # -- requests ----------------------------------------------------------------------------------

    def _on_fetch(self, identity: bytes, fetch: ReplicaFetchRequest, now_ms: int) -> None:
        session = self._session(identity, fetch, now_ms)
        if isinstance(session, ErrorCode):
            self._send(identity, ReplicaFetchResponse(fetch.request_id, fetch.store, session))
            return
        if session.delayed_fetch is not None:
            self._answer(session, session.delayed_fetch, now_ms, is_due=True)
        session.broker.fetch_ms = now_ms
        session.broker.broker_epoch = fetch.broker_epoch
        for handle in fetch.forgotten:
            self._forget(session, handle)
        for subscribed in fetch.subscribed:
            self._forget(session, subscribed.handle)
            location = self._partitions.location_of(subscribed.topic_id, subscribed.partition)
            added = session.partitions[subscribed.handle] = _CachedPartition(
                subscribed.handle,
                location,
                subscribed.leader_epoch,
                subscribed.fetch_offset,
                subscribed.last_epoch,
            )
            if location is not None:
                self._by_location.setdefault(location, []).append((session, added))
            self._on_follower_start(session, added, subscribed.log_start_offset)
            self._on_position(session, added, now_ms)
        for handle, log_start_offset in fetch.log_starts:
            cached = session.partitions.get(handle)
            if cached is not None:
                self._on_follower_start(session, cached, log_start_offset)
        for reached in fetch.reached:
            cached = session.partitions.get(reached.handle)
            if cached is not None:
                cached.offset = reached.fetch_offset
                cached.last_epoch = reached.last_epoch
                self._on_position(session, cached, now_ms)
        session.delayed_fetch = fetch
        session.fetch_deadline_ms = now_ms + fetch.wait_ms_max

    def _session(
        self, identity: bytes, fetch: ReplicaFetchRequest, now_ms: int
    ) -> _FetchSession | ErrorCode:
        """The session of a request: a new one if the request is full."""
        if fetch.cluster_id != self._cluster_id:
            log.error(
                "refused a fetch of a node of another cluster",
                peer_node=fetch.broker_id,
                peer_cluster_id=fetch.cluster_id,
            )
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        key = identity, fetch.store
        if not fetch.is_full:
            return self._sessions.get(key, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        for other, former in list(self._sessions.items()):
            # Also those of a process of that node that has ended.
            if other == key or (
                other[1] == fetch.store and former.broker.broker_id == fetch.broker_id
            ):
                self._drop(other)
        broker = FollowerBroker(fetch.broker_id, fetch.broker_epoch, now_ms)
        session = self._sessions[key] = _FetchSession(identity, broker)
        return session

    def _on_follower_start(
        self, session: _FetchSession, cached: _CachedPartition, log_start_offset: int
    ) -> None:
        location = cached.location
        if location is not None and not self._leader_error(cached):
            self._on_log_start(location, session.broker.broker_id, log_start_offset)

    def _on_position(self, session: _FetchSession, cached: _CachedPartition, now_ms: int) -> None:
        """The follower's log ends at `cached.offset`: compare it with this log, and apply its
        progress."""
        error = self._check(cached)
        cached.awaits_position = error is not None
        cached.is_early = error is not None and error.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        if error is not None:
            if not cached.is_early:
                session.errors[cached.handle] = error
            return
        location = cached.location
        assert location is not None
        leader = self._leaders[location]
        cached.is_stranger = session.broker.broker_id not in leader.replica.image.replicas
        if cached.offset < leader.replica.log_end_offset:
            session.ready[cached.handle] = None
        if cached.offset >= self._partitions.log(location).log_start_offset:
            self._on_outcome(
                location, leader.follower_fetched(session.broker, cached.offset, now_ms)
            )
        if cached.sent_high_watermark != leader.high_watermark:
            self._note_moved_watermark(session, cached, now_ms)

    def _check(self, cached: _CachedPartition) -> ReplicaPartitionData | None:
        """The error or divergence of the follower. None if its log is a prefix of this log."""
        code, location = self._leader_error(cached), cached.location
        if code or location is None:
            return _error(cached, code)
        partition_log = self._partitions.log(location)
        offset = cached.offset
        if cached.last_epoch >= 0:
            store, number = location
            epoch, end_offset = self._partitions.stores[store].end_offset_for_epoch(
                number, cached.last_epoch
            )
            if epoch < 0:
                return self._out_of_range(cached, location)
            if epoch != cached.last_epoch or end_offset < offset:
                return ReplicaPartitionData(
                    cached.handle,
                    ErrorCode.NONE,
                    partition_log.high_watermark,
                    partition_log.log_start_offset,
                    partition_log.log_end_offset,
                    diverging_epoch=epoch,
                    diverging_end=end_offset,
                )
        if offset > partition_log.log_end_offset or offset < partition_log.log_start_offset:
            error = self._out_of_range(cached, location)
            # A log start may be inside a batch, which a follower fetches as a whole.
            if offset > partition_log.log_end_offset or offset < error.log_start_offset:
                return error
        return None

    def _leader_error(self, cached: _CachedPartition) -> ErrorCode:
        """NONE if this worker leads the partition in the follower's leader epoch."""
        location = cached.location
        replicated = self._partitions.replicated.get(location) if location is not None else None
        if replicated is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        code = check_leader(replicated.image, self._node_id, cached.leader_epoch)
        if not code and location not in self._leaders:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code

    def _out_of_range(
        self, cached: _CachedPartition, location: PartitionLocation
    ) -> ReplicaPartitionData:
        partition_log = self._partitions.log(location)
        start, end = partition_log.log_start_offset, partition_log.log_end_offset
        if start < end:
            found = self._reader(location[0]).read(location[1], start, max_bytes=1, end_offset=end)
            start = min(start, found.first_offset)
        return ReplicaPartitionData(
            cached.handle, ErrorCode.OFFSET_OUT_OF_RANGE, partition_log.high_watermark, start, end
        )

    # -- responses ---------------------------------------------------------------------------------

    def _note_moved_watermark(
        self, session: _FetchSession, cached: _CachedPartition, now_ms: int
    ) -> None:
        if not session.moved_watermarks:
            session.watermark_deadline_ms = now_ms + WATERMARK_LINGER_MS
        session.moved_watermarks[cached.handle] = None

    def _answer(
        self, session: _FetchSession, fetch: ReplicaFetchRequest, now_ms: int, *, is_due: bool
    ) -> bool:
        """Send the response if it has content or `is_due`. False if the follower is gone."""
        response = _Response(list(session.errors.values()), fetch.bytes_max)
        session.errors.clear()
        for handle in list(session.ready):
            self._read_partition(session, session.partitions[handle], response, now_ms)
            if response.bytes_left <= 0 or response.batches_left <= 0:
                break
        parts = response.parts
        if not parts and not is_due:
            return True
        for handle in session.moved_watermarks:
            cached = session.partitions[handle]
            if cached.awaits_position:
                cached.sent_high_watermark = -1
            elif cached.location is not None and cached.location in self._leaders:
                parts.append(self._part(cached, cached.location, 0))
        session.moved_watermarks.clear()
        session.watermark_deadline_ms = NEVER
        session.delayed_fetch = None
        self.sent_bytes += fetch.bytes_max - response.bytes_left
        if response.batches:
            response.batches.insert(0, _HEAD)
        answer = ReplicaFetchResponse(
            fetch.request_id,
            fetch.store,
            ErrorCode.NONE,
            tuple(parts),
            batch_count=BATCHES_PER_RESPONSE_MAX - response.batches_left,
        )
        return self._send(session.identity, answer, response.batches)

    def _send(
        self,
        identity: bytes,
        response: ReplicaFetchResponse,
        batches: Sequence[bytes | memoryview] = (),
    ) -> bool:
        assert self._socket is not None, "a request was received"
        return send_response(self._socket, identity, response, batches)

    def _read_partition(
        self, session: _FetchSession, cached: _CachedPartition, response: _Response, now_ms: int
    ) -> None:
        """Add the partition's batches to the response."""
        handle, location = cached.handle, cached.location
        leader = self._leaders.get(location) if location is not None else None
        if location is None or leader is None:
            del session.ready[handle]
            return
        max_bytes = response.bytes_left
        is_throttled = self._is_throttled(location, session, leader)
        if is_throttled:
            if not self._budget.available(now_ms):
                return
            # One batch may exceed the budget, a whole response may not.
            allowance = self._budget.allowance(now_ms)
            max_bytes = max_bytes if allowance is None else min(max_bytes, allowance)
        end = leader.replica.log_end_offset
        try:
            result = self._reader(location[0]).read(
                location[1],
                cached.offset,
                max_bytes=max_bytes,
                end_offset=end,
                min_one_batch=not response.batches,
                batches_max=response.batches_left,
            )
        except StorageError as error:
            log.error("a store cannot be read for a follower", store=location[0], reason=str(error))
            del session.ready[handle]
            cached.awaits_position = True
            response.parts.append(_error(cached, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        if not result.buffers:
            if cached.offset >= end:
                del session.ready[handle]
            return
        del session.ready[handle]
        session.moved_watermarks.pop(handle, None)
        cached.awaits_position = True
        response.batches += result.buffers
        response.holds.append(result.hold)
        response.bytes_left -= result.byte_count
        response.batches_left -= result.batch_count
        if is_throttled:
            self._budget.spend(result.byte_count, now_ms)
        response.parts.append(self._part(cached, location, result.byte_count))

    def _part(
        self, cached: _CachedPartition, location: PartitionLocation, byte_count: int
    ) -> ReplicaPartitionData:
        partition_log = self._partitions.log(location)
        cached.sent_high_watermark = partition_log.high_watermark
        return ReplicaPartitionData(
            cached.handle,
            ErrorCode.NONE,
            partition_log.high_watermark,
            partition_log.log_start_offset,
            partition_log.log_end_offset,
            byte_count,
        )

    def _is_throttled(
        self,
        location: PartitionLocation,
        session: _FetchSession,
        leader: LeaderPartition[DelayedProduce],
    ) -> bool:
        """In-sync replicas are not throttled, because they would fall out of the ISR."""
        replicated = self._partitions.replicated.get(location)
        return (
            replicated is not None
            and replicated.leader_throttle_rate is not None
            and session.broker.broker_id not in leader.replica.image.in_sync_replicas
        )

    # -- sessions ----------------------------------------------------------------------------------

    def _forget(self, session: _FetchSession, handle: int) -> None:
        cached = session.partitions.pop(handle, None)
        if cached is None:
            return
        for handles in (session.ready, session.errors, session.moved_watermarks):
            handles.pop(handle, None)
        if cached.location is not None:
            pairs = self._by_location.get(cached.location)
            if pairs is not None:
                pairs[:] = [pair for pair in pairs if pair[1] is not cached]
                if not pairs:
                    del self._by_location[cached.location]

    def _drop(self, key: tuple[bytes, int]) -> None:
        session = self._sessions.pop(key)
        for handle in list(session.partitions):
            self._forget(session, handle)

    def _reader(self, store: int) -> StoreReader:
        reader = self._readers.get(store)
        if reader is None:
            reader = self._readers[store] = self._open_reader(store)
        return reader


def _error(cached: _CachedPartition, code: ErrorCode) -> ReplicaPartitionData:
    return ReplicaPartitionData(cached.handle, code, -1, -1, -1)

"""The serving side of replication: responses to followers of other nodes.

A follower node has one fetch session per store, with its partitions and positions. A request is
answered when there are records, an error or a divergence for it; when a high watermark has moved
and nothing else came within a few milliseconds; or when its wait time is over. After records of a
partition were sent, nothing more is sent of it until the follower reports its new position. A
follower may know a leader epoch before this node does. It gets no error: it is checked again with
the next image, because producers wait for it.

Only changed partitions are processed: those whose follower reported, and those that were appended
to. Batches are read like a consumer's, without decoding them.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import zmq

from odradek.cluster.replication.leader import FollowerBroker, LeaderEffects, LeaderPartition
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.cluster.replication.partition import check_leader
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.bus.replica_link import requests, send_response
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.turns import DelayedProduce
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader

log = logging.getLogger(__name__)

WATERMARK_LINGER_MS = 5
"""How long a new high watermark may wait for records to be sent with it."""
SESSION_TIMEOUT_MS = 60_000
"""A session without requests for this long is removed."""
_HEAD = bytes(PAYLOAD_HEAD)

Leaders = Mapping[PartitionLocation, LeaderPartition[DelayedProduce]]


class OnFollowerLogStart(Protocol):
    """Called with a follower's log start offset."""

    def __call__(
        self, location: PartitionLocation, broker_id: int, log_start_offset: int
    ) -> None: ...


class OnFollowerProgress(Protocol):
    """Called with the outcome of a follower's progress."""

    def __call__(
        self, location: PartitionLocation, outcome: LeaderEffects[DelayedProduce]
    ) -> None: ...


class _CachedPartition:
    """One partition of a session. `offset` is the follower's log end."""

    __slots__ = (
        "awaits_position",
        "handle",
        "is_early",
        "last_epoch",
        "leader_epoch",
        "location",
        "offset",
        "sent_high_watermark",
    )

    def __init__(self, wanted: ReplicaFetchPartition, location: PartitionLocation | None) -> None:
        self.handle = wanted.handle
        self.location = location
        self.leader_epoch = wanted.leader_epoch
        self.offset = wanted.fetch_offset
        self.last_epoch = wanted.last_epoch
        self.sent_high_watermark = -1
        """The high watermark that was sent last."""
        self.awaits_position = False
        """Whether the follower must report its position before more is sent."""
        self.is_early = False
        """Whether the follower's leader epoch is newer than the image of this node."""


class _FetchSession:
    __slots__ = (
        "cached",
        "contact",
        "delayed_fetch",
        "identity",
        "moved_watermarks",
        "ready",
        "told",
        "watermark_deadline_ms",
    )

    def __init__(self, identity: bytes, contact: FollowerBroker) -> None:
        self.identity = identity
        self.contact = contact
        self.cached: dict[int, _CachedPartition] = {}
        self.ready: dict[int, None] = {}
        """Handles of partitions that may have records to send, in the order of sending."""
        self.told: dict[int, ReplicaPartitionData] = {}
        """Errors and divergences to send."""
        self.moved_watermarks: dict[int, None] = {}
        """Handles whose high watermark has moved."""
        self.watermark_deadline_ms = NEVER
        self.delayed_fetch: _DelayedFetch | None = None


class _DelayedFetch(NamedTuple):
    """A request that waits for data."""

    fetch: ReplicaFetchRequest
    deadline_ms: int


class _Response:
    """A response that is being filled. `holds` keeps the segments that the batches are views of."""

    __slots__ = ("batches", "bytes_left", "holds", "parts")

    def __init__(self, parts: list[ReplicaPartitionData], bytes_max: int) -> None:
        self.parts = parts
        self.bytes_left = bytes_max
        self.batches: list[bytes | memoryview] = []
        self.holds: list[object] = []


class ReplicaFetchServer:
    """The sessions of all followers with one worker, and their socket."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        partitions: HostedPartitions,
        leaders: Leaders,
        *,
        cluster_id: str,
        node_id: int,
        on_outcome: OnFollowerProgress,
        on_log_start: OnFollowerLogStart,
        open_reader: Callable[[int], StoreReader],
        budget: TokenBudget,
    ) -> None:
        self.socket = socket
        self._partitions = partitions
        self._leaders = leaders
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._on_outcome = on_outcome
        self._on_log_start = on_log_start
        self._open_reader = open_reader
        self._readers: dict[int, StoreReader] = {}
        self._budget = budget
        self._sessions: dict[tuple[bytes, int], _FetchSession] = {}
        self._by_location: dict[
            PartitionLocation, list[tuple[_FetchSession, _CachedPartition]]
        ] = {}
        self.sent_bytes = 0
        self.on_relay: Callable[[bytes, bytes], None] = lambda _identity, _payload: None
        """Called with (identity, payload) of a request of another node's router."""

    def receive(self, now_ms: int) -> bool:
        """Receive requests, which `answer` answers. Whether there were any."""
        is_any = False
        for identity, fetch in requests(self.socket, on_relay=self.on_relay):
            is_any = True
            self._on_fetch(identity, fetch, now_ms)
        return is_any

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
        served_here = self._by_location.pop(location, [])
        early = [(session, cached) for session, cached in served_here if cached.is_early]
        if early:
            self._by_location[location] = early
        for session, cached in served_here:
            session.ready.pop(cached.handle, None)
            session.moved_watermarks.pop(cached.handle, None)
            if not cached.awaits_position:
                cached.awaits_position = True
                session.told[cached.handle] = self._error(cached, location)

    def recheck_early_followers(self, location: PartitionLocation, now_ms: int) -> None:
        """Check the early followers of this partition again, after a new image."""
        for session, cached in list(self._by_location.get(location, ())):
            if cached.is_early:
                self._on_position(session, cached, now_ms)

    def answer(self, now_ms: int) -> None:
        """Answer the requests that have data or whose wait time is over."""
        for key, session in list(self._sessions.items()):
            delayed_fetch = session.delayed_fetch
            if delayed_fetch is None:
                if now_ms - session.contact.fetch_ms > SESSION_TIMEOUT_MS:
                    self._drop(key)
                continue
            has_moved_watermarks = (
                bool(session.moved_watermarks) and now_ms >= session.watermark_deadline_ms
            )
            if (
                session.told
                or session.ready
                or has_moved_watermarks
                or now_ms >= delayed_fetch.deadline_ms
            ):
                is_due = has_moved_watermarks or now_ms >= delayed_fetch.deadline_ms
                if not self._answer(session, delayed_fetch.fetch, now_ms, is_due=is_due):
                    self._drop(key)

    def next_ms(self, now_ms: int) -> int:
        """When `answer` must be called next."""
        due = NEVER
        for session in self._sessions.values():
            if session.delayed_fetch is not None:
                due = min(due, session.delayed_fetch.deadline_ms)
                if session.ready:
                    due = min(due, max(now_ms + 1, self._budget.next_ms(now_ms)))
                if session.moved_watermarks:
                    due = min(due, session.watermark_deadline_ms)
        return due

    def close(self) -> None:
        """Close the socket and the readers."""
        self.socket.close(0)
        for reader in self._readers.values():
            reader.close()

    # -- requests ----------------------------------------------------------------------------------

    def _on_fetch(self, identity: bytes, fetch: ReplicaFetchRequest, now_ms: int) -> None:
        key = identity, fetch.store
        if fetch.cluster_id != self._cluster_id:
            log.error(
                "refused a fetch of node %d: it belongs to cluster %r",
                fetch.broker_id,
                fetch.cluster_id,
            )
            self._refuse(identity, fetch, ErrorCode.INCONSISTENT_CLUSTER_ID)
            return
        session = self._sessions.get(key)
        if fetch.is_full:
            if session is not None:
                self._drop(key)
            for other, known in list(self._sessions.items()):
                if other[1] == fetch.store and known.contact.broker_id == fetch.broker_id:
                    self._drop(other)  # of a process that has ended
            contact = FollowerBroker(fetch.broker_id, fetch.broker_epoch, now_ms)
            session = self._sessions[key] = _FetchSession(identity, contact)
        elif session is None:
            self._refuse(identity, fetch, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        if session.delayed_fetch is not None:
            self._answer(session, session.delayed_fetch.fetch, now_ms, is_due=True)
        session.contact.fetch_ms = now_ms
        session.contact.broker_epoch = fetch.broker_epoch
        for handle in fetch.forgotten:
            self._forget(session, handle)
        for wanted in fetch.subscribed:
            self._forget(session, wanted.handle)
            location = self._partitions.location_of(wanted.topic_id, wanted.partition)
            cached = session.cached[wanted.handle] = _CachedPartition(wanted, location)
            if location is not None:
                self._by_location.setdefault(location, []).append((session, cached))
            self._started(session, cached, wanted.log_start_offset)
            self._on_position(session, cached, now_ms)
        for handle, log_start_offset in fetch.log_starts:
            told = session.cached.get(handle)
            if told is not None:
                self._started(session, told, log_start_offset)
        for reached in fetch.reached:
            known_served = session.cached.get(reached.handle)
            if known_served is not None:
                known_served.offset = reached.fetch_offset
                known_served.last_epoch = reached.last_epoch
                self._on_position(session, known_served, now_ms)
        session.delayed_fetch = _DelayedFetch(fetch, now_ms + fetch.wait_ms_max)

    def _started(
        self, session: _FetchSession, cached: _CachedPartition, log_start_offset: int
    ) -> None:
        location = cached.location
        if location is None or location not in self._leaders:
            return
        image = self._leaders[location].replica.image
        if not check_leader(image, self._node_id, cached.leader_epoch):
            self._on_log_start(location, session.contact.broker_id, log_start_offset)

    def _on_position(self, session: _FetchSession, cached: _CachedPartition, now_ms: int) -> None:
        """The follower of this partition is at `served.offset`: is that on our log, and what does
        it bring?"""
        told = self._check(cached)
        cached.awaits_position = told is not None
        cached.is_early = told is not None and told.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        if told is not None:
            if not cached.is_early:
                session.told[cached.handle] = told
            return
        location = cached.location
        assert location is not None
        leader = self._leaders[location]
        if cached.offset < leader.replica.log_end_offset:
            session.ready[cached.handle] = None
        known = self._partitions.stores[location[0]].partitions()[location[1]]
        if cached.offset >= known.log_start_offset:
            self._on_outcome(
                location, leader.follower_fetched(session.contact, cached.offset, now_ms)
            )
        if cached.sent_high_watermark != leader.high_watermark:
            self._note_moved_watermark(session, cached, now_ms)

    def _check(self, cached: _CachedPartition) -> ReplicaPartitionData | None:
        """The error or divergence of the follower. None if its log is a prefix of this log."""
        location = cached.location
        replicated = self._partitions.replicated.get(location) if location is not None else None
        if location is None or replicated is None:
            return self._error(cached, location)
        if check_leader(replicated.image, self._node_id, cached.leader_epoch):
            return self._error(cached, location)
        if location not in self._leaders:
            return self._error(cached, location)
        store, number = self._partitions.stores[location[0]], location[1]
        known = store.partitions()[number]
        offset = cached.offset
        if cached.last_epoch >= 0:
            epoch, end_offset = store.end_offset_for_epoch(number, cached.last_epoch)
            if epoch < 0:
                return self._out_of_range(cached, location)
            if epoch != cached.last_epoch or end_offset < offset:
                return ReplicaPartitionData(
                    cached.handle,
                    ErrorCode.NONE,
                    known.high_watermark,
                    known.log_start_offset,
                    known.log_end_offset,
                    diverging_epoch=epoch,
                    diverging_end=end_offset,
                )
        if offset > known.log_end_offset or offset < known.log_start_offset:
            told = self._out_of_range(cached, location)
            # A log start may be inside a batch, which a follower fetches as a whole.
            if offset > known.log_end_offset or offset < told.log_start_offset:
                return told
        return None

    def _error(
        self, cached: _CachedPartition, location: PartitionLocation | None
    ) -> ReplicaPartitionData:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        replicated = self._partitions.replicated.get(location) if location is not None else None
        if replicated is not None:
            code = check_leader(replicated.image, self._node_id, cached.leader_epoch)
            if code is ErrorCode.NONE:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ReplicaPartitionData(cached.handle, code, -1, -1, -1)

    def _out_of_range(
        self, cached: _CachedPartition, location: PartitionLocation
    ) -> ReplicaPartitionData:
        known = self._partitions.stores[location[0]].partitions()[location[1]]
        start, end = known.log_start_offset, known.log_end_offset
        if start < end:
            found = self._reader(location[0]).read(location[1], start, max_bytes=1, end_offset=end)
            start = min(start, found.first_offset)
        return ReplicaPartitionData(
            cached.handle, ErrorCode.OFFSET_OUT_OF_RANGE, known.high_watermark, start, end
        )

    # -- answers -----------------------------------------------------------------------------------

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
        response = _Response(list(session.told.values()), fetch.bytes_max)
        session.told.clear()
        for handle in list(session.ready):
            self._read_partition(session, session.cached[handle], response, now_ms)
            if response.bytes_left <= 0:
                break
        parts = response.parts
        if not parts and not is_due:
            return True
        for handle in session.moved_watermarks:
            cached = session.cached[handle]
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
        answer = ReplicaFetchResponse(fetch.request_id, fetch.store, ErrorCode.NONE, tuple(parts))
        return send_response(self.socket, session.identity, answer, response.batches)

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
            )
        except StorageError as error:
            log.error("cannot read store %d for a follower: %s", location[0], error)
            del session.ready[handle]
            cached.awaits_position = True
            code = ErrorCode.KAFKA_STORAGE_ERROR
            response.parts.append(ReplicaPartitionData(handle, code, -1, -1, -1))
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
        if is_throttled:
            self._budget.spend(result.byte_count, now_ms)
        response.parts.append(self._part(cached, location, result.byte_count))

    def _part(
        self, cached: _CachedPartition, location: PartitionLocation, byte_count: int
    ) -> ReplicaPartitionData:
        known = self._partitions.stores[location[0]].partitions()[location[1]]
        cached.sent_high_watermark = known.high_watermark
        return ReplicaPartitionData(
            cached.handle,
            ErrorCode.NONE,
            known.high_watermark,
            known.log_start_offset,
            known.log_end_offset,
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
            and session.contact.broker_id not in leader.replica.image.in_sync_replicas
        )

    def _refuse(self, identity: bytes, fetch: ReplicaFetchRequest, code: ErrorCode) -> None:
        send_response(
            self.socket, identity, ReplicaFetchResponse(fetch.request_id, fetch.store, code), ()
        )

    # -- sessions ----------------------------------------------------------------------------------

    def _forget(self, session: _FetchSession, handle: int) -> None:
        cached = session.cached.pop(handle, None)
        if cached is None:
            return
        session.ready.pop(handle, None)
        session.told.pop(handle, None)
        session.moved_watermarks.pop(handle, None)
        if cached.location is not None:
            pairs = self._by_location.get(cached.location)
            if pairs is not None:
                pairs[:] = [pair for pair in pairs if pair[1] is not cached]
                if not pairs:
                    del self._by_location[cached.location]

    def _drop(self, key: tuple[bytes, int]) -> None:
        session = self._sessions.pop(key)
        for handle in list(session.cached):
            self._forget(session, handle)

    def _reader(self, store: int) -> StoreReader:
        reader = self._readers.get(store)
        if reader is None:
            reader = self._readers[store] = self._open_reader(store)
        return reader

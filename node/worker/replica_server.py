"""What this worker's followers are told: the serving side of replication.

A follower node has one session for each store, which remembers what it follows and from where. Its
request is answered when there are records for it, an error or a divergence; when a high watermark
has moved and nothing else came within a few milliseconds; or when its wait is over. What one answer
brought of a partition is followed by nothing more of it until the follower says how far it is now.
A follower that knows of a leader epoch before we do is not sent away: it is looked at again when we
know, because whoever writes waits for it meanwhile.

Nothing is looked at but what has changed: a partition is marked when its follower moved or its log
grew. Batches are read as consumers' are, without being looked into.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import zmq

from odradek.cluster.replication.leader import Contact, LeaderPartition, Outcome
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    PartitionFetched,
    ReplicaFetch,
    ReplicaFetched,
    Subscribed,
)
from odradek.cluster.replication.partition import check_leader
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.bus.replica_link import requests, send_answer
from odradek.node.worker.partitions import Partitions, Place
from odradek.node.worker.turns import Held
from odradek.protocol.errors import ErrorCode
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader

log = logging.getLogger(__name__)

WATERMARK_DELAY_MS = 5
"""How long a high watermark may wait for records to travel with."""
SESSION_MS = 60_000
"""A follower that was silent for so long must introduce itself again."""
_NEVER = 2**63 - 1
_HEAD = bytes(PAYLOAD_HEAD)

Leaders = Mapping[Place, LeaderPartition[Held]]


class OnStarted(Protocol):
    """Hears where a follower's log starts."""

    def __call__(self, place: Place, broker_id: int, log_start_offset: int) -> None: ...


class OnOutcome(Protocol):
    """Hears what a follower's progress brought."""

    def __call__(self, place: Place, outcome: Outcome[Held]) -> None: ...


class _Served:
    """One partition of a session. `offset` is the follower's log end."""

    __slots__ = (
        "handle",
        "is_early",
        "is_waiting",
        "last_epoch",
        "leader_epoch",
        "offset",
        "place",
        "watermark",
    )

    def __init__(self, wanted: Subscribed, place: Place | None) -> None:
        self.handle = wanted.handle
        self.place = place
        self.leader_epoch = wanted.leader_epoch
        self.offset = wanted.fetch_offset
        self.last_epoch = wanted.last_epoch
        self.watermark = -1
        """The high watermark that the follower was told last."""
        self.is_waiting = False
        """For the follower to say how far it is: it was told something that moves it."""
        self.is_early = False
        """Its leader epoch has not begun here; then it is waiting as well."""


class _Session:
    __slots__ = ("contact", "identity", "news", "news_ms", "parked", "ready", "served", "told")

    def __init__(self, identity: bytes, contact: Contact) -> None:
        self.identity = identity
        self.contact = contact
        self.served: dict[int, _Served] = {}
        self.ready: dict[int, None] = {}
        """Handles of which there may be records to send, in the order in which it is their turn."""
        self.told: dict[int, PartitionFetched] = {}
        """Errors and divergences to be told."""
        self.news: dict[int, None] = {}
        """Handles whose high watermark has moved."""
        self.news_ms = _NEVER
        self.parked: _Parked | None = None


class _Parked(NamedTuple):
    """A request that waits."""

    fetch: ReplicaFetch
    deadline_ms: int


class ReplicaServer:
    """The sessions of all followers with one worker, and the socket they come in by."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        partitions: Partitions,
        leaders: Leaders,
        *,
        cluster_id: str,
        node_id: int,
        on_outcome: OnOutcome,
        on_started: OnStarted,
        open_reader: Callable[[int], StoreReader],
        budget: TokenBudget,
    ) -> None:
        self.socket = socket
        self._partitions = partitions
        self._leaders = leaders
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._on_outcome = on_outcome
        self._on_started = on_started
        self._open_reader = open_reader
        self._readers: dict[int, StoreReader] = {}
        self._budget = budget
        self._sessions: dict[tuple[bytes, int], _Session] = {}
        self._by_place: dict[Place, list[tuple[_Session, _Served]]] = {}
        self.sent_bytes = 0
        self.on_relay: Callable[[bytes, bytes], None] = lambda _identity, _payload: None
        """Gets (identity, payload) of what another node's router asks ours."""

    def receive(self, now_ms: int) -> bool:
        """Take in what followers ask; answers leave with `answer`. Whether there was anything."""
        is_any = False
        for identity, fetch in requests(self.socket, on_relay=self.on_relay):
            is_any = True
            self._take(identity, fetch, now_ms)
        return is_any

    def grown(self, places: Iterable[Place]) -> None:
        """These logs are longer now."""
        for place in places:
            for session, served in self._by_place.get(place, ()):
                if not served.is_waiting:
                    session.ready[served.handle] = None

    def moved(self, place: Place, now_ms: int) -> None:
        """The high watermark of this partition, or its log start, is another now."""
        for session, served in self._by_place.get(place, ()):
            if served.is_waiting:
                # Of who diverges, or has just been sent records, nobody knows what its log holds:
                # it is told when it says how far it is.
                served.watermark = -1
            else:
                self._note_news(session, served, now_ms)

    def renounce(self, place: Place) -> None:
        """This partition is not led here any more, or in another epoch: its followers must ask
        anew, but for those who have done so already."""
        served_here = self._by_place.pop(place, [])
        early = [(session, served) for session, served in served_here if served.is_early]
        if early:
            self._by_place[place] = early
        for session, served in served_here:
            session.ready.pop(served.handle, None)
            session.news.pop(served.handle, None)
            if not served.is_waiting:
                served.is_waiting = True
                session.told[served.handle] = self._error(served, place)

    def heed(self, place: Place, now_ms: int) -> None:
        """There is another state of this partition: is it what early followers wait for?"""
        for session, served in list(self._by_place.get(place, ())):
            if served.is_early:
                self._reached(session, served, now_ms)

    def answer(self, now_ms: int) -> None:
        """Answer those to whom there is something to say, or whose wait is over."""
        for key, session in list(self._sessions.items()):
            parked = session.parked
            if parked is None:
                if now_ms - session.contact.fetch_ms > SESSION_MS:
                    self._drop(key)
                continue
            has_news = bool(session.news) and now_ms >= session.news_ms
            if session.told or session.ready or has_news or now_ms >= parked.deadline_ms:
                is_due = has_news or now_ms >= parked.deadline_ms
                if not self._answer(session, parked.fetch, now_ms, is_due=is_due):
                    self._drop(key)

    def next_ms(self, now_ms: int) -> int:
        """When `answer` must be called again if nothing else happens."""
        due = _NEVER
        for session in self._sessions.values():
            if session.parked is not None:
                due = min(due, session.parked.deadline_ms)
                if session.ready:
                    due = min(due, max(now_ms + 1, self._budget.next_ms(now_ms)))
                if session.news:
                    due = min(due, session.news_ms)
        return due

    def close(self) -> None:
        """Answer nobody any more."""
        self.socket.close(0)
        for reader in self._readers.values():
            reader.close()

    # -- requests ----------------------------------------------------------------------------------

    def _take(self, identity: bytes, fetch: ReplicaFetch, now_ms: int) -> None:
        key = identity, fetch.store
        if fetch.cluster_id != self._cluster_id:
            log.error("node %d is of cluster %r", fetch.broker_id, fetch.cluster_id)
            self._refuse(identity, fetch, ErrorCode.INCONSISTENT_CLUSTER_ID)
            return
        session = self._sessions.get(key)
        if fetch.is_full:
            if session is not None:
                self._drop(key)
            for other, known in list(self._sessions.items()):
                if other[1] == fetch.store and known.contact.broker_id == fetch.broker_id:
                    self._drop(other)  # of a process that has ended
            contact = Contact(fetch.broker_id, fetch.broker_epoch, now_ms)
            session = self._sessions[key] = _Session(identity, contact)
        elif session is None:
            self._refuse(identity, fetch, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        if session.parked is not None:
            self._answer(session, session.parked.fetch, now_ms, is_due=True)
        session.contact.fetch_ms = now_ms
        session.contact.broker_epoch = fetch.broker_epoch
        for handle in fetch.forgotten:
            self._forget(session, handle)
        for wanted in fetch.subscribed:
            self._forget(session, wanted.handle)
            place = self._partitions.place_of(wanted.topic_id, wanted.partition)
            served = session.served[wanted.handle] = _Served(wanted, place)
            if place is not None:
                self._by_place.setdefault(place, []).append((session, served))
            self._started(session, served, wanted.log_start_offset)
            self._reached(session, served, now_ms)
        for handle, log_start_offset in fetch.log_starts:
            told = session.served.get(handle)
            if told is not None:
                self._started(session, told, log_start_offset)
        for reached in fetch.reached:
            known_served = session.served.get(reached.handle)
            if known_served is not None:
                known_served.offset = reached.fetch_offset
                known_served.last_epoch = reached.last_epoch
                self._reached(session, known_served, now_ms)
        session.parked = _Parked(fetch, now_ms + fetch.wait_ms_max)

    def _started(self, session: _Session, served: _Served, log_start_offset: int) -> None:
        place = served.place
        if place is None or place not in self._leaders:
            return
        image = self._leaders[place].replica.image
        if not check_leader(image, self._node_id, served.leader_epoch):
            self._on_started(place, session.contact.broker_id, log_start_offset)

    def _reached(self, session: _Session, served: _Served, now_ms: int) -> None:
        """The follower of this partition is at `served.offset`: is that on our log, and what does
        it bring?"""
        told = self._check(served)
        served.is_waiting = told is not None
        served.is_early = told is not None and told.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        if told is not None:
            if not served.is_early:
                session.told[served.handle] = told
            return
        place = served.place
        assert place is not None
        leader = self._leaders[place]
        if served.offset < leader.replica.log_end_offset:
            session.ready[served.handle] = None
        known = self._partitions.stores[place[0]].partitions()[place[1]]
        if served.offset >= known.log_start_offset:
            self._on_outcome(place, leader.fetched(session.contact, served.offset, now_ms))
        if served.watermark != leader.high_watermark:
            self._note_news(session, served, now_ms)

    def _check(self, served: _Served) -> PartitionFetched | None:
        """What to tell instead of records; None if the follower's log is a part of ours."""
        place = served.place
        replicated = self._partitions.replicated.get(place) if place is not None else None
        if place is None or replicated is None:
            return self._error(served, place)
        if check_leader(replicated.image, self._node_id, served.leader_epoch):
            return self._error(served, place)
        if place not in self._leaders:
            return self._error(served, place)
        store, number = self._partitions.stores[place[0]], place[1]
        known = store.partitions()[number]
        offset = served.offset
        if served.last_epoch >= 0:
            epoch, end_offset = store.end_offset_for_epoch(number, served.last_epoch)
            if epoch < 0:
                return self._out_of_range(served, place)
            if epoch != served.last_epoch or end_offset < offset:
                return PartitionFetched(
                    served.handle,
                    ErrorCode.NONE,
                    known.high_watermark,
                    known.log_start_offset,
                    known.log_end_offset,
                    diverging_epoch=epoch,
                    diverging_end=end_offset,
                )
        if offset > known.log_end_offset or offset < known.log_start_offset:
            told = self._out_of_range(served, place)
            # A log start may lie inside a batch, which a follower takes as a whole.
            if offset > known.log_end_offset or offset < told.log_start_offset:
                return told
        return None

    def _error(self, served: _Served, place: Place | None) -> PartitionFetched:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        replicated = self._partitions.replicated.get(place) if place is not None else None
        if replicated is not None:
            code = check_leader(replicated.image, self._node_id, served.leader_epoch)
            if code is ErrorCode.NONE:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return PartitionFetched(served.handle, code, -1, -1, -1)

    def _out_of_range(self, served: _Served, place: Place) -> PartitionFetched:
        known = self._partitions.stores[place[0]].partitions()[place[1]]
        start, end = known.log_start_offset, known.log_end_offset
        if start < end:
            found = self._reader(place[0]).read(place[1], start, max_bytes=1, end_offset=end)
            start = min(start, found.first_offset)
        return PartitionFetched(
            served.handle, ErrorCode.OFFSET_OUT_OF_RANGE, known.high_watermark, start, end
        )

    # -- answers -----------------------------------------------------------------------------------

    def _note_news(self, session: _Session, served: _Served, now_ms: int) -> None:
        if not session.news:
            session.news_ms = now_ms + WATERMARK_DELAY_MS
        session.news[served.handle] = None

    def _answer(self, session: _Session, fetch: ReplicaFetch, now_ms: int, *, is_due: bool) -> bool:
        """False if the follower is gone. If nothing is there, an answer is sent if it `is_due`."""
        parts = list(session.told.values())
        session.told.clear()
        batches: list[bytes | memoryview] = []
        holds: list[object] = []
        left = fetch.bytes_max
        for handle in list(session.ready):
            served = session.served[handle]
            place = served.place
            leader = self._leaders.get(place) if place is not None else None
            if place is None or leader is None:
                del session.ready[handle]
                continue
            is_throttled = self._is_throttled(place, session, leader)
            if is_throttled and not self._budget.available(now_ms):
                continue
            # One batch may overdraw the budget, not a whole answer: replicas then move evenly.
            allowance = self._budget.allowance(now_ms) if is_throttled else None
            end = leader.replica.log_end_offset
            try:
                result = self._reader(place[0]).read(
                    place[1],
                    served.offset,
                    max_bytes=left if allowance is None else min(left, allowance),
                    end_offset=end,
                    min_one_batch=not batches,
                )
            except StorageError as error:
                log.error("store %d cannot be read: %s", place[0], error)
                del session.ready[handle]
                served.is_waiting = True
                code = ErrorCode.KAFKA_STORAGE_ERROR
                parts.append(PartitionFetched(handle, code, -1, -1, -1))
                continue
            if not result.buffers:
                if served.offset >= end:
                    del session.ready[handle]
                continue
            del session.ready[handle]
            session.news.pop(handle, None)
            served.is_waiting = True
            batches += result.buffers
            holds.append(result.hold)
            left -= result.byte_count
            if is_throttled:
                self._budget.spend(result.byte_count, now_ms)
            parts.append(self._part(served, place, result.byte_count))
            if left <= 0:
                break
        if not parts and not is_due:
            return True
        for handle in session.news:
            served = session.served[handle]
            if served.is_waiting:
                served.watermark = -1
            elif served.place is not None and served.place in self._leaders:
                parts.append(self._part(served, served.place, 0))
        session.news.clear()
        session.news_ms = _NEVER
        session.parked = None
        answer = ReplicaFetched(fetch.request_id, fetch.store, ErrorCode.NONE, tuple(parts))
        self.sent_bytes += fetch.bytes_max - left
        if batches:
            batches.insert(0, _HEAD)
        is_there = send_answer(self.socket, session.identity, answer, batches)
        holds.clear()  # nobody looks at the views any more
        return is_there

    def _part(self, served: _Served, place: Place, byte_count: int) -> PartitionFetched:
        known = self._partitions.stores[place[0]].partitions()[place[1]]
        served.watermark = known.high_watermark
        return PartitionFetched(
            served.handle,
            ErrorCode.NONE,
            known.high_watermark,
            known.log_start_offset,
            known.log_end_offset,
            byte_count,
        )

    def _is_throttled(self, place: Place, session: _Session, leader: LeaderPartition[Held]) -> bool:
        """In sync nobody is slowed down, or the throttle would take it out of the ISR."""
        replicated = self._partitions.replicated.get(place)
        return (
            replicated is not None
            and replicated.leader_rate is not None
            and session.contact.broker_id not in leader.replica.image.in_sync_replicas
        )

    def _refuse(self, identity: bytes, fetch: ReplicaFetch, code: ErrorCode) -> None:
        send_answer(self.socket, identity, ReplicaFetched(fetch.request_id, fetch.store, code), ())

    # -- sessions ----------------------------------------------------------------------------------

    def _forget(self, session: _Session, handle: int) -> None:
        served = session.served.pop(handle, None)
        if served is None:
            return
        session.ready.pop(handle, None)
        session.told.pop(handle, None)
        session.news.pop(handle, None)
        if served.place is not None:
            pairs = self._by_place.get(served.place)
            if pairs is not None:
                pairs[:] = [pair for pair in pairs if pair[1] is not served]
                if not pairs:
                    del self._by_place[served.place]

    def _drop(self, key: tuple[bytes, int]) -> None:
        session = self._sessions.pop(key)
        for handle in list(session.served):
            self._forget(session, handle)

    def _reader(self, store: int) -> StoreReader:
        reader = self._readers.get(store)
        if reader is None:
            reader = self._readers[store] = self._open_reader(store)
        return reader

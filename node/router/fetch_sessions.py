"""Incremental fetch sessions (KIP-227): a client's partitions, kept between its fetches.

A session belongs to the router that created it. Epoch 0 creates one, -1 closes it or means "no
session", any other epoch must be the next one. Incremental responses leave out partitions that have
not changed. `max.incremental.fetch.session.cache.slots` bounds the sessions. When all slots are
taken, a session that has been idle for two minutes is evicted; if there is none, the fetch is
answered without a session.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequest

EVICTION_IDLE_MS = 120_000
"""Kafka's default of min.incremental.fetch.session.eviction.ms."""
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1

TopicKey = str | bytes
"""A topic's name up to version 12, its id from 13."""


@dataclass(slots=True)
class CachedPartition:
    """A partition of a fetch, and what the last response said of it (`sent_`)."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    partition_bytes_max: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    sent_error_code: int = 0


@dataclass(slots=True)
class FetchSession:
    """One client's partitions in the order of serving: those that returned records go last."""

    session_id: int
    uses_topic_ids: bool
    epoch: int
    last_used_ms: int
    partitions: "OrderedDict[tuple[TopicKey, int], CachedPartition]" = field(
        default_factory=OrderedDict
    )


@dataclass(slots=True)
class FetchContext:
    """The partitions of one fetch, in order. If `is_incremental`, the response leaves out those
    that have not changed."""

    partitions: list[CachedPartition]
    session: FetchSession | None
    is_incremental: bool
    error_code: int = ErrorCode.NONE

    @property
    def session_id(self) -> int:
        """The id for the response: 0 without a session."""
        return 0 if self.session is None else self.session.session_id


class FetchSessionCache:
    """All sessions of one router. `new_id` draws a random positive int32."""

    def __init__(self, new_id: Callable[[], int], slots_max: Callable[[], int]) -> None:
        self._new_id = new_id
        self._slots_max = slots_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self, request: FetchRequest, version: int, requested: list[CachedPartition], now_ms: int
    ) -> FetchContext:
        """The partitions that a request fetches. Creates, advances or closes its session.
        `requested` are the partitions in the request."""
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            if version >= 7 and request.session_id:
                self._sessions.pop(request.session_id, None)
            return FetchContext(requested, None, is_incremental=False)
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return FetchContext(
                requested, self._create(requested, version, now_ms), is_incremental=False
            )
        return self._advance(request, version, requested, now_ms)

    def discard_new(self, fetch: FetchContext) -> None:
        """Remove the session that was created for this fetch, if one was."""
        if fetch.session is not None and not fetch.is_incremental:
            self._sessions.pop(fetch.session.session_id, None)

    def get(self, session_id: int) -> FetchSession | None:
        """The session with this id, if it is still there."""
        return self._sessions.get(session_id)

    def advance(self, session: FetchSession, now_ms: int) -> None:
        """A fetch of the session: the next one has the next epoch."""
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        self.touch(session, now_ms)

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """The session is in use. It must be here."""
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)

    def _advance(
        self, request: FetchRequest, version: int, requested: list[CachedPartition], now_ms: int
    ) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext([], None, True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext([], None, True, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= 13):
            return FetchContext([], None, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.advance(session, now_ms)
        by_id = version >= 13
        for forgotten in request.forgotten_topics_data:
            topic: TopicKey = forgotten.topic_id if by_id else forgotten.topic
            for partition in forgotten.partitions:
                session.partitions.pop((topic, partition), None)
        for cached in requested:
            key = (cached.topic, cached.partition)
            former = session.partitions.get(key)
            if former is not None:
                cached.sent_high_watermark = former.sent_high_watermark
                cached.sent_log_start_offset = former.sent_log_start_offset
                cached.sent_error_code = former.sent_error_code
            session.partitions[key] = cached
        return FetchContext(list(session.partitions.values()), session, is_incremental=True)

    def _create(
        self, requested: list[CachedPartition], version: int, now_ms: int
    ) -> FetchSession | None:
        slots_max = self._slots_max()
        if slots_max <= 0 or not requested:
            return None
        if len(self._sessions) >= slots_max:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms < EVICTION_IDLE_MS:
                return None
            del self._sessions[oldest.session_id]
        session_id = self._new_id()
        while session_id in self._sessions or session_id == 0:
            session_id = self._new_id()
        session = FetchSession(session_id, version >= 13, 1, now_ms)
        for cached in requested:
            session.partitions[(cached.topic, cached.partition)] = cached
        self._sessions[session_id] = session
        return session


def requested_partitions(request: FetchRequest, version: int) -> list[CachedPartition]:
    """The partitions in a request. One that is named twice counts once, as in Kafka: as it is named
    last."""
    by_id = version >= 13
    requested = [
        CachedPartition(
            topic.topic_id if by_id else topic.topic,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    if len(requested) < 2:
        return requested
    return list({(cached.topic, cached.partition): cached for cached in requested}.values())


async def requested_partitions_cooperatively(
    request: FetchRequest, version: int
) -> list[CachedPartition]:
    """The same of a long request."""
    by_id = version >= 13
    pace = LoopYielder()
    requested: dict[tuple[TopicKey, int], CachedPartition] = {}
    for topic in request.topics:
        name: TopicKey = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            await pace.step()
            requested[name, partition.partition] = CachedPartition(
                name,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
    return list(requested.values())


def update_if_changed(
    cached: CachedPartition,
    *,
    has_records: bool,
    error_code: int,
    high_watermark: int,
    log_start_offset: int,
) -> bool:
    """Whether an incremental response must include this partition. Updates what was sent."""
    is_changed = (
        has_records
        or error_code != ErrorCode.NONE
        or cached.sent_error_code != error_code
        or cached.sent_high_watermark != high_watermark
        or cached.sent_log_start_offset != log_start_offset
    )
    if is_changed:
        cached.sent_error_code = error_code
        cached.sent_high_watermark = high_watermark
        cached.sent_log_start_offset = log_start_offset
    return is_changed

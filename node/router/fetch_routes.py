"""Consumers that follow the end of one partition: their fetches may be answered by its worker.

A connection whose fetches of a single partition find a few records each time is handed over to the
worker that owns the partition (connection_handover.py, docs/adr/0027-connection-handover.md). What
the worker is given, a `FetchRoute`, is the request and the response with the places of what
changes. They are made by the encoders: where two encodings differ, the fetch offset, the epoch of
the session or the offsets of the log are. A request that is not encoded so is not handed over.

Invariant as for the routes of producers: a worker answers only while nothing has changed that was
asked when the request was decoded: the metadata, the rules of the authorizer, who the client is,
its fetch session, the reader of the store and the catalog that it has read. Called by
repeated_requests.py and connection_handover.py.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from odradek.cluster.metadata.broker_settings import RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import TopicImage
from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.bus.connection_handover import (
    DirectFetch,
    FetchPosition,
    HandedBack,
    HandOver,
    Served,
)
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import (
    FINAL_EPOCH,
    CachedPartition,
    FetchSession,
    TopicKey,
)
from odradek.node.router.logs import LocatedLog
from odradek.node.router.produce_routes import ProduceRoutes, differing_bytes
from odradek.node.wire.connection import Connection
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_request, encode_response, encode_response_header
from odradek.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

HANDOVER_AFTER: Final = 16
"""Fetches in a row that found a few records, before the connection is handed over."""
FEW_BYTES_MAX: Final = 32 << 10
"""Of records in a response. A worker sends twice as many, because sizes vary."""
WAIT_MS_MAX: Final = 30_000
"""Of a request before a handover: until it is answered the connection is not read, and nobody sees
whether the client is still there."""

_READ_COMMITTED: Final = 1
_LOG_START_SINCE: Final = 5
_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_BEHIND_CORRELATION_ID: Final = 8
_NO_REPLICA: Final = -1
_MARK: Final = b"records of this response"


class SmallFetches:
    """What is remembered of a connection: how many fetches in a row found a few records."""

    __slots__ = ("handover_after", "until_handover")

    def __init__(self) -> None:
        self.handover_after = self.until_handover = HANDOVER_AFTER


class FetchRoute:
    """The fetches of one connection, as its worker answers them: a HandedRequests."""

    api_key: Final = ApiKey.FETCH
    handover_after_min: Final = HANDOVER_AFTER

    def __init__(
        self,
        routing: "FetchRouting",
        fetches: SmallFetches,
        request: FetchRequest,
        context: RequestContext,
        header: bytes,
        topic: TopicImage,
        log: LocatedLog,
    ) -> None:
        """`header` is what comes before the request's body, from behind the correlation id on."""
        self._routing = routing
        self.pace = fetches
        self._request = request
        (asked,) = request.topics
        (self._partition,) = asked.partitions
        self._version = version = context.api_version
        self._key: TopicKey = asked.topic_id if version >= _TOPIC_IDS_SINCE else asked.topic
        self._session_key = self._key, self._partition.partition
        self._client_id, self._client_host = context.client_id or "", context.client_host
        self._principal = context.principal
        self._header = header
        self._topic = topic
        self._log = log
        self._generation = log.reader.status.generation
        self._image_offset = routing.metadata.image.offset
        self._rules = routing.authorizer.rules
        self._session: FetchSession | None = None
        self._session_epoch = 0
        """When the connection was handed over."""
        self.worker = routing.worker_of(log.store)

    def message(self, connection: Connection, received: bytes) -> HandOver | None:
        """What the worker is told. None if the last response was not like those before."""
        if connection.remembered is not self.pace:
            return None
        position = FetchPosition(0, self._partition.fetch_offset, -1, -1)
        request = self._request
        if request.session_id:
            session = self._session = self._routing.sessions.get(request.session_id)
            cached = None if session is None else session.partitions.get(self._session_key)
            if session is None or cached is None or len(session.partitions) != 1:
                return None
            self._session_epoch = session.epoch
            position = FetchPosition(
                session.epoch,
                cached.fetch_offset,
                cached.sent_high_watermark,
                cached.sent_log_start_offset,
            )
        fetch = self._direct_fetch(position)
        key_and_version = (ApiKey.FETCH << 16) + self._version
        return HandOver(connection.id, key_and_version, (), received, fetch)

    def is_valid(self, connection: Connection) -> bool:
        """Whether nothing has changed that the worker does not see."""
        routing, session, reader = self._routing, self._session, self._log.reader
        return (
            self._image_offset == routing.metadata.image.offset
            and self._rules is routing.authorizer.rules
            and self._principal == connection.peer_principal
            and self._generation == reader.status.generation
            and routing.has_open(self._log.store, reader)
            and (
                session is None
                or (
                    session.epoch == self._session_epoch
                    and routing.sessions.get(session.session_id) is session
                )
            )
        )

    def served(self, connection: Connection, message: Served) -> None:
        """The worker has answered requests."""
        routing, request = self._routing, self._request
        routing.count_requests((ApiKey.FETCH, self._version), message.requests)
        if not message.requests:
            return
        now_ms = routing.now_ms()
        if self._session is not None:
            routing.sessions.touch(self._session, now_ms)
        routing.activity.record_fetch(
            connection.id,
            self._client_id,
            self._client_host,
            [self._cached_at(message.fetch_offset)],
            session_id=request.session_id,
            is_reduced=False,
            is_read_committed=request.isolation_level == _READ_COMMITTED,
            now_ms=now_ms,
        )
        if message.record_bytes:
            routing.activity.record_sent([(self._key, message.record_bytes, message.records)])

    def take_back(self, connection: Connection, message: HandedBack) -> None:
        """The session goes on where the worker has left it."""
        session, position = self._session, message.position
        if session is not None and position is not None and session.epoch == self._session_epoch:
            cached = self._cached_at(position.fetch_offset)
            cached.sent_high_watermark = position.sent_high_watermark
            cached.sent_log_start_offset = position.sent_log_start_offset
            session.partitions[self._session_key] = cached
            session.epoch = position.epoch
        connection.take_back(message.received, message.unsent)

    def _cached_at(self, fetch_offset: int) -> CachedPartition:
        partition = self._partition
        return CachedPartition(
            self._key,
            partition.partition,
            fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
        )

    # -- requests and responses around what changes ------------------------------------------------

    def _direct_fetch(self, position: FetchPosition) -> DirectFetch:
        request, version = self._request, self._version
        fetch_bytes_max = self._routing.metadata.broker_settings().fetch_max_bytes
        example = self._request_with(0, 0)
        offset_at, _ = differing_bytes(example, self._request_with(0, -1))
        epoch_at, repeated_request, unchanged_response = -1, b"", b""
        if request.session_id:
            epoch_at, _ = differing_bytes(example, self._request_with(-1, 0))
            topics, request.topics = request.topics, []
            repeated_request = self._request_with(0, 0)
            request.topics = topics
            unchanged_response = self._response_with(None)
        response = self._response_with(0)
        offsets_at, offsets_end = differing_bytes(response, self._response_with(-1))
        mark_at = response.rindex(_MARK)
        is_flexible = version >= _FLEXIBLE_SINCE
        return DirectFetch(
            store=self._log.store,
            number=self._log.number,
            is_read_committed=request.isolation_level == _READ_COMMITTED,
            bytes_max=min(self._partition.partition_max_bytes, request.max_bytes, fetch_bytes_max),
            wait_ms=request.max_wait_ms,
            position=position,
            request=example,
            wait_at=len(self._header) + (4 if version < _REPLICA_STATE_SINCE else 0),
            offset_at=offset_at,
            head=response[:offsets_at],
            middle=response[offsets_end : mark_at - (1 if is_flexible else 4)],
            tail=response[mark_at + len(_MARK) :],
            is_flexible=is_flexible,
            epoch_at=epoch_at,
            repeated_request=repeated_request,
            unchanged_response=unchanged_response,
        )

    def _request_with(self, epoch: int, offset: int) -> bytes:
        """From behind the correlation id on."""
        request = self._request
        request.session_epoch = epoch if request.session_id else FINAL_EPOCH
        self._partition.fetch_offset = offset
        return b"".join((self._header, *encode_request(ApiKey.FETCH, self._version, request)))

    def _response_with(self, value: int | None) -> bytes:
        """From behind the correlation id on. With None the partition is left out."""
        version, topics = self._version, []
        is_committed = self._request.isolation_level == _READ_COMMITTED
        if value is not None:
            data = PartitionData(
                partition_index=self._partition.partition,
                high_watermark=value,
                last_stable_offset=value,
                log_start_offset=value,
                aborted_transactions=[] if is_committed else None,
                records=[_MARK],
            )
            topic, partitions = self._topic, [data]
            topics.append(
                FetchableTopicResponse(topic_id=topic.topic_id, partitions=partitions)
                if version >= _TOPIC_IDS_SINCE
                else FetchableTopicResponse(topic=topic.name, partitions=partitions)
            )
        response = FetchResponse(session_id=self._request.session_id, responses=topics)
        header = encode_response_header(ApiKey.FETCH, version, 0)
        return b"".join((header, *encode_response(ApiKey.FETCH, version, response)))[4:]


ConsiderFetchHandover: TypeAlias = Callable[[Connection, FetchRoute], None]


class FetchRouting:
    """The fetches of all connections of a router. `count_requests` is called with API key and
    version of requests, and their number."""

    def __init__(
        self, services: Services, count_requests: Callable[[tuple[int, int], int], None]
    ) -> None:
        self._logs = services.logs
        self.metadata: Final = services.metadata
        self.authorizer: Final = services.authorizer
        self.sessions: Final = services.fetch_sessions
        self.activity: Final = services.fetch_activity
        self.worker_of: Final = services.worker_client.worker_of
        self.has_open: Final = services.logs.has_open
        self.now_ms: Final = services.now_ms
        self.count_requests: Final = count_requests
        self.consider_handover: ConsiderFetchHandover = lambda _connection, _route: None
        """Called with a fetch that goes on as those before it."""

    def begin(
        self, client: Connection, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> bool:
        """Whether the request is one that a worker might answer. If those before it found a few
        records, handing over the connection is considered. Only while the request is begun."""
        if not _is_routable(request, context.api_version):
            return False
        fetches = client.remembered
        if type(fetches) is SmallFetches and fetches.until_handover <= 0:
            fetches.until_handover = fetches.handover_after
            route = self._route(fetches, request, context, body_offset)
            if route is not None:
                self.consider_handover(client, route)
        return True

    def note(self, client: Connection, response: FetchResponse) -> None:
        """Count the response to a request for which `begin` has returned True."""
        fetches = client.remembered
        if not _has_few_records(response):
            if type(fetches) is SmallFetches:
                client.remembered = None
        elif type(fetches) is not ProduceRoutes:
            if type(fetches) is not SmallFetches:
                fetches = client.remembered = SmallFetches()
            fetches.until_handover -= 1

    def _route(
        self,
        fetches: SmallFetches,
        request: FetchRequest,
        context: RequestContext,
        body_offset: int,
    ) -> FetchRoute | None:
        version, image = context.api_version, self.metadata.image
        header = bytes(context.frame[_BEHIND_CORRELATION_ID:body_offset])
        body = b"".join(encode_request(ApiKey.FETCH, version, request))
        (asked,) = request.topics
        topic = (
            image.topics_by_id.get(asked.topic_id)
            if version >= _TOPIC_IDS_SINCE
            else image.topics_by_name.get(asked.topic)
        )
        (wanted,) = asked.partitions
        if (
            context.frame[body_offset:] != body
            or topic is None
            or not 0 <= wanted.partition < len(topic.partitions)
            or self._may_prefer_another_replica(request)
        ):
            return None
        partition = topic.partitions[wanted.partition]
        log = self._logs.open(topic.topic_id, wanted.partition)
        if (
            log is None
            or partition.leader != self.metadata.node_id
            or wanted.current_leader_epoch not in (partition.leader_epoch, ANY_EPOCH)
            # A consumer that has read records of the current epoch cannot diverge from the log.
            or wanted.last_fetched_epoch not in (partition.leader_epoch, ANY_EPOCH)
        ):
            return None
        return FetchRoute(self, fetches, request, context, header, topic, log)

    def _may_prefer_another_replica(self, request: FetchRequest) -> bool:
        selector = self.metadata.broker_settings().replica_selector_class
        return bool(request.rack_id) and selector == RACK_AWARE_SELECTOR


def _is_routable(request: FetchRequest, version: int) -> bool:
    """Whether the request is for one partition, and waits for anything that comes."""
    topics = request.topics
    if (
        version < _LOG_START_SINCE
        or len(topics) != 1
        or len(topics[0].partitions) != 1
        or not _has_session_or_none(request)
        or request.min_bytes > 1
        or request.max_bytes <= 0
        or not 0 < request.max_wait_ms <= WAIT_MS_MAX
        or request.replica_id >= 0
        or request.forgotten_topics_data
    ):
        return False
    state, (partition,) = request.replica_state, topics[0].partitions
    return (state is None or state.replica_id < 0) and partition.partition_max_bytes > 0


def _has_session_or_none(request: FetchRequest) -> bool:
    """Whether it neither creates a session nor closes one."""
    if request.session_id:
        return request.session_epoch > 0
    return request.session_epoch == FINAL_EPOCH


def _has_few_records(response: FetchResponse) -> bool:
    """Whether the response has nothing but some records of one partition."""
    topics = response.responses
    if response.throttle_time_ms or len(topics) != 1 or len(topics[0].partitions) != 1:
        return False
    (data,) = topics[0].partitions
    return (
        not data.error_code
        and isinstance(data.records, list)
        and 0 < sum(map(len, data.records)) <= FEW_BYTES_MAX
        and not data.aborted_transactions
        and data.diverging_epoch is None
        and data.preferred_read_replica == _NO_REPLICA
    )

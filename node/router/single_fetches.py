"""Fetches of a single partition whose repetitions are known by their bytes.

A `SingleFetch` is the request and the response with the places of what changes. They are made by
the encoders: where two encodings differ, the fetch offset, the epoch of the session or the offsets
of the log are. A request that is not encoded so is not taken.

Invariant: whoever answers without decoding does so only while nothing has changed that was asked
when the request was decoded: the metadata, the rules of the authorizer, who the client is, its
fetch session, the reader of the store and the catalog that it has read. Called by fetch_routes.py
and large_fetches.py.
"""

from copy import copy
from typing import Final

from odradek.cluster.metadata.broker_settings import RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import TopicImage
from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.bus.connection_handover import DirectFetch, FetchPosition
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import (
    FINAL_EPOCH,
    CachedPartition,
    FetchSession,
    TopicKey,
)
from odradek.node.router.logs import LocatedLog
from odradek.node.router.produce_routes import differing_bytes
from odradek.node.wire.connection import Connection
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_request, encode_response, encode_response_header
from odradek.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

WAIT_MS_MAX: Final = 30_000
"""Of a request. While it waits the connection is not read, and nobody sees whether the client is
still there."""

_READ_COMMITTED: Final = 1
_LOG_START_SINCE: Final = 5
_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_BEHIND_CORRELATION_ID: Final = 8
_NO_REPLICA: Final = -1
_MARK: Final = b"records of this response"


class Told:
    """What holds for all partitions of a request: the metadata, the rules of the authorizer and who
    the client is."""

    __slots__ = ("image_offset", "principal", "rules")

    def __init__(self, image_offset: int, rules: object, principal: str) -> None:
        self.image_offset: Final = image_offset
        self.rules: Final = rules
        self.principal: Final = principal


class SingleFetch(Told):
    """The fetches of one partition by one client, with what the first of them was told."""

    __slots__ = (
        "_header",
        "_partition",
        "_session_key",
        "_topic",
        "bytes_max",
        "client_host",
        "client_id",
        "count_key",
        "fetch_offset",
        "generation",
        "key",
        "log",
        "request",
    )

    def __init__(
        self,
        told: Told,
        request: FetchRequest,
        context: RequestContext,
        header: bytes,
        topic: TopicImage,
        log: LocatedLog,
        *,
        fetch_bytes_max: int,
    ) -> None:
        """`header` is what comes before the request's body, from behind the correlation id on.
        `fetch_bytes_max` is fetch.max.bytes of that time."""
        super().__init__(told.image_offset, told.rules, told.principal)
        # Copies: the request itself is still to be answered.
        (asked,) = request.topics
        asked = copy(asked)
        self._partition = copy(asked.partitions[0])
        asked.partitions = [self._partition]
        self.request: Final = copy(request)
        self.request.topics = [asked]
        version = context.api_version
        self.key: Final[TopicKey] = asked.topic_id if version >= _TOPIC_IDS_SINCE else asked.topic
        self._session_key = self.key, self._partition.partition
        self.count_key: Final = ApiKey.FETCH, version
        self.fetch_offset: Final = self._partition.fetch_offset
        """Of the first request."""
        self.client_id: Final = context.client_id or ""
        self.client_host: Final = context.client_host
        self._header = header
        self._topic = topic
        self.log: Final = log
        self.generation: Final = log.reader.status.generation
        self.bytes_max: Final = min(
            self._partition.partition_max_bytes, request.max_bytes, fetch_bytes_max
        )
        """Of the records in a response."""

    @property
    def is_read_committed(self) -> bool:
        return self.request.isolation_level == _READ_COMMITTED

    def cached_at(self, fetch_offset: int) -> CachedPartition:
        """As a fetch at this offset asks for it."""
        partition = self._partition
        return CachedPartition(
            self.key,
            partition.partition,
            fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
        )

    def cached_in(self, session: FetchSession | None) -> CachedPartition | None:
        """What the session has of the partition, if it has no other one."""
        if session is None or len(session.partitions) != 1:
            return None
        return session.partitions.get(self._session_key)

    def replace_in(self, session: FetchSession, cached: CachedPartition) -> None:
        """The session's partition was fetched, or its client was told of it."""
        session.partitions[self._session_key] = cached

    # -- requests and responses around what changes ------------------------------------------------

    def template(self, position: FetchPosition) -> DirectFetch:
        """The requests and responses. `position` is where the consumer is."""
        request, (_, version) = self.request, self.count_key
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
            store=self.log.store,
            number=self.log.number,
            is_read_committed=self.is_read_committed,
            bytes_max=self.bytes_max,
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
        request, (_, version) = self.request, self.count_key
        request.session_epoch = epoch if request.session_id else FINAL_EPOCH
        self._partition.fetch_offset = offset
        return b"".join((self._header, *encode_request(ApiKey.FETCH, version, request)))

    def _response_with(self, value: int | None) -> bytes:
        """From behind the correlation id on. With None the partition is left out."""
        (_, version), topics = self.count_key, []
        if value is not None:
            data = PartitionData(
                partition_index=self._partition.partition,
                high_watermark=value,
                last_stable_offset=value,
                log_start_offset=value,
                aborted_transactions=[] if self.is_read_committed else None,
                records=[_MARK],
            )
            topic, partitions = self._topic, [data]
            topics.append(
                FetchableTopicResponse(topic_id=topic.topic_id, partitions=partitions)
                if version >= _TOPIC_IDS_SINCE
                else FetchableTopicResponse(topic=topic.name, partitions=partitions)
            )
        response = FetchResponse(session_id=self.request.session_id, responses=topics)
        header = encode_response_header(ApiKey.FETCH, version, 0)
        return b"".join((header, *encode_response(ApiKey.FETCH, version, response)))[4:]


class SingleFetches:
    """What the single fetches of all connections of a router have been told, and whether it
    holds."""

    def __init__(self, services: Services) -> None:
        self._logs = services.logs
        self._metadata = services.metadata
        self._authorizer = services.authorizer
        self._sessions = services.fetch_sessions
        self._activity = services.fetch_activity
        self.now_ms: Final = services.now_ms

    def is_single(self, request: FetchRequest, version: int) -> bool:
        """Whether the request is for one partition, and waits for anything that comes. The response
        to one of a session has all of its partitions."""
        if not is_for_one_partition(request, version):
            return False
        session = self._sessions.get(request.session_id) if request.session_id else None
        return session is None or len(session.partitions) == 1

    def resolve(
        self, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> SingleFetch | None:
        """What repetitions of the request are told as long as it `is_unchanged`. None if that
        depends on more. For requests that are `is_single`."""
        version, image = context.api_version, self._metadata.image
        header = bytes(context.frame[_BEHIND_CORRELATION_ID:body_offset])
        body = b"".join(encode_request(ApiKey.FETCH, version, request))
        (asked,) = request.topics
        topic = (
            image.topics_by_id.get(asked.topic_id)
            if version >= _TOPIC_IDS_SINCE
            else image.topics_by_name.get(asked.topic)
        )
        (wanted,) = asked.partitions
        if context.frame[body_offset:] != body or self.may_prefer_another_replica(request):
            return None
        log = self.locate(topic, wanted)
        if topic is None or log is None:
            return None
        return SingleFetch(
            self.told(context),
            request,
            context,
            header,
            topic,
            log,
            fetch_bytes_max=self._metadata.broker_settings().fetch_max_bytes,
        )

    def told(self, context: RequestContext) -> Told:
        """What a request that is begun now is told."""
        return Told(self._metadata.image.offset, self._authorizer.rules, context.principal)

    def locate(self, topic: TopicImage | None, wanted: FetchPartition) -> LocatedLog | None:
        """The log of a partition that this broker leads. None if the request has another epoch, or
        there is no such partition."""
        if topic is None or not 0 <= wanted.partition < len(topic.partitions):
            return None
        partition = topic.partitions[wanted.partition]
        if (
            partition.leader != self._metadata.node_id
            or wanted.current_leader_epoch not in (partition.leader_epoch, ANY_EPOCH)
            # A consumer that has read records of the current epoch cannot diverge from the log.
            or wanted.last_fetched_epoch not in (partition.leader_epoch, ANY_EPOCH)
        ):
            return None
        return self._logs.open(topic.topic_id, wanted.partition)

    def is_unchanged(self, fetch: SingleFetch, connection: Connection) -> bool:
        """Whether everything but its session is as it was."""
        log = fetch.log
        return (
            self.holds(fetch, connection)
            and fetch.generation == log.reader.status.generation
            and self._logs.has_open(log.store, log.reader)
        )

    def holds(self, told: Told, connection: Connection) -> bool:
        """Whether a request would be told the same now."""
        return (
            told.image_offset == self._metadata.image.offset
            and told.rules is self._authorizer.rules
            and told.principal == connection.peer_principal
        )

    def record(
        self,
        fetch: SingleFetch,
        connection: Connection,
        cached: CachedPartition,
        sent: tuple[int, int],
    ) -> None:
        """Such a fetch was answered. `sent` has bytes and number of the records."""
        activity = self._activity
        activity.record_fetch(
            connection.id,
            fetch.client_id,
            fetch.client_host,
            [cached],
            session_id=fetch.request.session_id,
            is_reduced=False,
            is_read_committed=fetch.is_read_committed,
            now_ms=self.now_ms(),
        )
        if sent[0]:
            activity.record_sent([(fetch.key, *sent)])

    def may_prefer_another_replica(self, request: FetchRequest) -> bool:
        """Whether the consumer may be sent to a replica in its rack (KIP-392)."""
        selector = self._metadata.broker_settings().replica_selector_class
        return bool(request.rack_id) and selector == RACK_AWARE_SELECTOR


def is_for_one_partition(request: FetchRequest, version: int) -> bool:
    """SingleFetches.is_single, whatever its session has."""
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


def single_record_bytes(response: FetchResponse) -> int:
    """The bytes of records in a response that has nothing but those of one partition, else 0."""
    topics = response.responses
    is_single = len(topics) == 1 and len(topics[0].partitions) == 1
    return record_bytes_of(response) if is_single else 0


def record_bytes_of(response: FetchResponse) -> int:
    """The bytes of records in a response that has nothing else to say, else 0."""
    if response.error_code or response.throttle_time_ms:
        return 0
    record_bytes = 0
    for topic in response.responses:
        for data in topic.partitions:
            if (
                data.error_code
                or data.aborted_transactions
                or data.diverging_epoch is not None
                or data.preferred_read_replica != _NO_REPLICA
            ):
                return 0
            if isinstance(data.records, list):
                record_bytes += sum(map(len, data.records))
    return record_bytes

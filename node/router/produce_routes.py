"""What a router remembers of a connection's Produce requests: where the records go, by the bytes
before them.

A producer that sends single batches repeats itself: but for the correlation id and the records, its
requests to one partition are the same bytes. So the first one is decoded, authorized and resolved,
and what came out is kept as a `ProduceRoute`. Those after it are compared with it byte by byte and
go to the worker at once: without a decoded request, a coroutine or an encoder. Their response is
the one of the first with other offsets. Whatever does not fit goes the way of all requests
(dispatch.py): several partitions, old formats, errors, acks=0, and every request while clients have
quotas, are traced or audited. So does a batch of a transaction that its partition is not known to
be a part of, such as the first one (transactions/partition_verification.py).

One invariant: a route is used only while nothing that it was made of has changed. These are the
metadata (topics, leaders, quotas), the rules of the authorizer and who the client is, the reader of
the store, and the catalog that it has read. The worker checks leadership again. Called by
repeated_requests.py (docs/adr/0026-repeated-requests.md).
"""

from collections.abc import Callable
from struct import Struct
from time import perf_counter_ns
from typing import Final

from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.bus.connection_handover import READ_BYTES
from odradek.node.bus.messages import UNSENT, Append, Appended, AppendReply
from odradek.node.bus.produce_frames import FLEXIBLE_SINCE, NO_TAGS, PREFIX_AT, records_at
from odradek.node.router.authorizer import CLUSTER_PRINCIPAL
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.produce import TOPIC_ID_SINCE, respond_to
from odradek.node.router.logs import LocatedLog
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.router.transactions.partition_verification import TransactionalProducer
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import APIS, Api, ApiKey
from odradek.protocol.codec import encode_response, encode_response_header
from odradek.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.primitives import read_uvarint
from odradek.protocol.records import HEADER_BYTES, MAGIC, MAGIC_AT, producer_of

HANDOVER_AFTER: Final = 32
"""Requests in a row, none of them very large, before a connection is handed over for the first
time."""
HANDOVER_AFTER_MIN: Final = 8
"""The same if handing it over has been of use."""
HANDED_BATCH_BYTES_MAX: Final = (1 << 20) + (32 << 10)
"""Larger batches are very large. A worker takes somewhat larger ones, because sizes vary."""
HANDED_TRANSACTION_BYTES_MAX: Final = 70 << 10
"""The same for batches of transactions, which a worker takes only with what it reads at once."""
ROUTES_MAX: Final = 128
"""Routes of one connection."""
PREFIX_BYTES_MAX: Final = 1024
"""Of the bytes before the records, which a client makes as long as it likes by its id. With them a
route takes two kilobytes at most."""

LOG_START_SINCE: Final = 5
_BATCHES_SINCE: Final = 3
_read_start = Struct(">ii").unpack_from
_read_int32 = Struct(">i").unpack_from
_SAMPLE_MASK: Final = SAMPLE_MASK_OF_API[ApiKey.PRODUCE]


def differing_bytes(first: bytes, second: bytes) -> tuple[int, int]:
    """Where two encodings of the same length differ, up to which byte (exclusive)."""
    differing = [at for at, byte in enumerate(first) if byte != second[at]]
    return differing[0], differing[-1] + 1


class ProduceRoute:
    """Where the records of such requests go, and what their response is."""

    __slots__ = (
        "acks",
        "client_id",
        "count_key",
        "encode",
        "generation",
        "head",
        "image_offset",
        "index",
        "number",
        "principal",
        "reader",
        "rules",
        "store",
        "tail",
        "timeout_ms",
        "topic_id",
        "topic_name",
        "transactional_id",
        "verified_partition",
        "version",
    )

    def __init__(
        self,
        request: ProduceRequest,
        context: RequestContext,
        log: LocatedLog,
        topic_name: str,
        image_offset: int,
        rules: object,
    ) -> None:
        self.reader, self.store, self.number = log.reader, log.store, log.number
        self.generation = self.reader.status.generation
        self.image_offset = image_offset
        self.rules = rules
        self.principal = context.principal
        self.client_id = context.client_id
        self.version = context.api_version
        self.count_key = context.api_key, context.api_version
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        (topic,) = request.topic_data
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.index = topic.partition_data[0].index
        self.transactional_id = request.transactional_id
        self.verified_partition = topic_name, self.index
        """As the coordinators of transactions know it."""
        self.head, offsets, self.tail = self._response_around_offsets()
        has_log_start = offsets == 24
        self.encode = Struct(
            f">i{len(self.head)}sqq{'q' if has_log_start else ''}{len(self.tail)}s"
        ).pack

    def _response_around_offsets(self) -> tuple[bytes, int, bytes]:
        """The bytes of a response between its correlation id and its offsets, how many bytes these
        are, and the bytes behind them. The offsets are where two responses differ."""
        response = self._response_with(0)
        start, end = differing_bytes(response, self._response_with(-1))
        return response[4:start], end - start, response[end:]

    def _response_with(self, value: int) -> bytes:
        partition = PartitionProduceResponse(
            index=self.index, base_offset=value, log_append_time_ms=value, log_start_offset=value
        )
        topic = TopicProduceResponse(
            name=self.topic_name, topic_id=self.topic_id, partition_responses=[partition]
        )
        header = encode_response_header(ApiKey.PRODUCE, self.version, 0)
        body = encode_response(ApiKey.PRODUCE, self.version, ProduceResponse(responses=[topic]))
        return b"".join((header, *body))


class ProduceRoutes:
    """Those of one connection, by the bytes between correlation id and records.

    Only requests of the API version that was seen last are looked up, with as many bytes.
    """

    __slots__ = (
        "by_prefix",
        "handover_after",
        "is_large",
        "key_and_version",
        "prefix_end",
        "until_handover",
    )

    def __init__(self) -> None:
        self.by_prefix: dict[bytes, ProduceRoute] = {}
        self.key_and_version = self.prefix_end = 0
        self.handover_after = self.until_handover = HANDOVER_AFTER
        """So many requests in a row, none of them very large, take a route before the connection is
        handed over to the worker: when it came last to the router, and from now on."""
        self.is_large = False
        """Whether a worker cannot read at once what it read last before a handover."""


class _RoutedAppend:
    """A request whose batch is with the worker: it gets the answer."""

    __slots__ = ("_correlation_id", "_route", "_routing", "_slot")

    def __init__(
        self, routing: "ProduceRouting", slot: Slot, route: ProduceRoute, correlation_id: int
    ) -> None:
        self._routing = routing
        self._slot = slot
        self._route = route
        self._correlation_id = correlation_id

    def resolve(self, value: AppendReply) -> None:
        """Complete the slot."""
        route = self._route
        if type(value) is not Appended or value.error_code:
            self._routing.refuse(self._slot, route, self._correlation_id, value)
        elif route.version >= LOG_START_SINCE:
            response = route.encode(
                self._correlation_id,
                route.head,
                value.base_offset,
                value.log_append_time_ms,
                value.log_start_offset,
                route.tail,
            )
            self._slot.complete((response,))
        else:
            response = route.encode(
                self._correlation_id,
                route.head,
                value.base_offset,
                value.log_append_time_ms,
                route.tail,
            )
            self._slot.complete((response,))


FinishProduce = Callable[[Slot, Api, RequestContext, ProduceResponse, None], None]
"""Completes the slot with the response."""


class ProduceRouting:
    """The routes of all connections of a router.

    `count_request` is called with API key and version of each request that took a route, `finish`
    with the responses to those that the worker has refused.
    """

    def __init__(
        self,
        services: Services,
        count_request: Callable[[tuple[int, int]], None],
        finish: FinishProduce,
    ) -> None:
        self._services = services
        self._authorizer = services.authorizer
        self._metadata = services.metadata
        self._worker_client = services.worker_client
        self._verification = services.partition_verification
        self._count_request = count_request
        self._finish = finish
        self.consider_handover: Callable[[Connection, ProduceRoutes, int], None] = (
            lambda _connection, _routes, _store: None
        )
        """Called with the store of the last request when a connection repeats itself."""

    def begin(
        self, routes: ProduceRoutes, slot: Slot, frame: memoryview, arena_offset: int
    ) -> bool:
        """Hand the batch of a request to its worker, if there is a route. The slot is completed
        with the answer. False if the request has to be decoded."""
        at, end = routes.prefix_end, len(frame)
        if end - at < HEADER_BYTES:
            return False
        key_and_version, correlation_id = _read_start(frame)
        if key_and_version != routes.key_and_version:
            return False
        route = routes.by_prefix.get(bytes(frame[PREFIX_AT:at]))
        if route is None:
            return False
        transactional_id = route.transactional_id
        is_transactional = transactional_id is not None
        found = records_at(frame, at, end, route.version, is_transactional=is_transactional)
        if found is None:
            return False
        at, size = found
        if not self.is_valid(route, slot.connection):
            routes.by_prefix.clear()
            return False
        leader_epoch = ANY_EPOCH
        if transactional_id is not None:
            producer = TransactionalProducer(transactional_id, *producer_of(frame, at))
            verified = self._verification.verified_leader_epoch(producer, route.verified_partition)
            if verified is None:
                return False
            leader_epoch = verified
        self._count_request(route.count_key)
        if not correlation_id & _SAMPLE_MASK:
            received_ns = slot.connection.received_ns
            slot.timing = RequestTiming(ApiKey.PRODUCE, received_ns, perf_counter_ns())
        slot.retain()
        self._worker_client.submit(
            Append(
                UNSENT,
                route.store,
                route.number,
                arena_offset + at,
                size,
                leader_epoch,
                route.acks,
                route.version,
                True,
                True,
                route.timeout_ms,
            ),
            _RoutedAppend(self, slot, route, correlation_id),
        )
        bytes_max = HANDED_TRANSACTION_BYTES_MAX if is_transactional else HANDED_BATCH_BYTES_MAX
        if size > bytes_max:
            routes.until_handover = routes.handover_after
        else:
            routes.until_handover -= 1
            if not routes.until_handover:
                routes.is_large = size > READ_BYTES
                self.consider_handover(slot.connection, routes, route.store)
        return True

    def answer(
        self, slot: Slot, route: ProduceRoute, correlation_id: int, reply: AppendReply
    ) -> None:
        """Complete the slot of a request that a worker has read itself."""
        _RoutedAppend(self, slot, route, correlation_id).resolve(reply)

    def is_valid(self, route: ProduceRoute, client: Connection) -> bool:
        """Whether nothing has changed that the route was made of."""
        return (
            route.image_offset == self._metadata.image.offset
            and route.rules is self._authorizer.rules
            and route.principal == client.peer_principal
            and route.generation == route.reader.status.generation
            and self._services.logs.has_open(route.store, route.reader)
        )

    def candidate(
        self, request: ProduceRequest, context: RequestContext
    ) -> "RouteCandidate | None":
        """What may become a route when the request has succeeded; None if it cannot. To be called
        before the request is authorized."""
        if not _is_routable(request, context):
            return None
        return RouteCandidate(request, context, self._metadata.image.offset, self._authorizer.rules)

    def remember(self, client: Connection, candidate: "RouteCandidate") -> None:
        """Make a route of a request that has succeeded. Before its slot is completed."""
        request, context = candidate.request, candidate.context
        image_offset, rules = candidate.image_offset, candidate.rules
        image = self._metadata.image
        if image.offset != image_offset or self._authorizer.rules is not rules:
            return
        (topic_data,) = request.topic_data
        (data,) = topic_data.partition_data
        frame, version = context.frame, context.api_version
        assert data.records is not None
        size, at = len(data.records), context.offset_of(data.records) - context.arena_offset
        if version < FLEXIBLE_SINCE:
            prefix_end, tags = at - 4, b""
        else:
            prefix_end, tags = at - ((size + 1).bit_length() + 6) // 7, NO_TAGS
            if read_uvarint(frame, prefix_end) != (size + 1, at):
                return  # longer than it must be
        if (
            prefix_end > PREFIX_BYTES_MAX
            or len(frame) != at + size + len(tags)
            or bytes(frame[at + size :]) != tags
        ):
            return
        topic = (
            image.topics_by_id.get(topic_data.topic_id)
            if version >= TOPIC_ID_SINCE
            else image.topics_by_name.get(topic_data.name)
        )
        if topic is None:
            return
        log = self._services.logs.open(topic.topic_id, data.index)
        if log is None:
            return
        routes = client.remembered
        if type(routes) is not ProduceRoutes:
            routes = client.remembered = ProduceRoutes()
        (key_and_version,) = _read_int32(frame)
        if routes.key_and_version != key_and_version:
            routes.key_and_version = key_and_version
            routes.by_prefix.clear()
        routes.prefix_end = prefix_end
        prefix = bytes(frame[PREFIX_AT:prefix_end])
        known = routes.by_prefix.get(prefix)
        if known is not None and self.is_valid(known, client):
            return  # it was the first batch of a transaction, say
        if len(routes.by_prefix) < ROUTES_MAX:
            route = ProduceRoute(request, context, log, topic.name, image_offset, rules)
            routes.by_prefix[prefix] = route

    def refuse(
        self, slot: Slot, route: ProduceRoute, correlation_id: int, answer: AppendReply
    ) -> None:
        """Answer a request whose batch the worker has refused."""
        client = slot.connection
        context = RequestContext(
            api_key=ApiKey.PRODUCE,
            api_version=route.version,
            correlation_id=correlation_id,
            client_id=route.client_id,
            client_host=client.client_host,
            client_port=client.client_port,
            local_host=client.local_host,
            local_port=client.local_port,
            listener_name=client.listener.name,
            principal=route.principal,
            connection_id=client.id,
        )
        topic = TopicProduceResponse(name=route.topic_name, topic_id=route.topic_id)
        response = respond_to(answer, topic, route.index, context, self._services)
        self._finish(slot, APIS[ApiKey.PRODUCE], context, response, None)


class RouteCandidate:
    """A request that may become a route, and what it was authorized and resolved with."""

    __slots__ = ("context", "image_offset", "request", "rules")

    def __init__(
        self, request: ProduceRequest, context: RequestContext, image_offset: int, rules: object
    ) -> None:
        self.request = request
        self.context = context
        self.image_offset = image_offset
        self.rules = rules


def _is_routable(request: ProduceRequest, context: RequestContext) -> bool:
    """Whether there can be a route for the request."""
    if (
        request.acks not in (-1, 1)
        or context.api_version < _BATCHES_SINCE
        or context.principal == CLUSTER_PRINCIPAL
        or len(request.topic_data) != 1
        or len(request.topic_data[0].partition_data) != 1
    ):
        return False
    records = request.topic_data[0].partition_data[0].records
    return records is not None and len(records) >= HEADER_BYTES and records[MAGIC_AT] == MAGIC

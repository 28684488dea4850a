"""The path of a request from frame to response over real sockets, and its errors."""

import asyncio
import inspect
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from odradek.node.bus.messages import UNSENT, DeleteRecords
from odradek.node.router import dispatch
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.dispatch import DECODED_BYTES_MAX, HANDLERS, Handler
from odradek.node.router.handlers.share_states import STATE_APIS, handle_share_group_state
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_response, encode_request_header
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceResponse,
)
from odradek.protocol.messages.topics import CreateTopicsRequest
from tests.support.dispatch_fixture import (
    DispatchClient,
    DispatchFixture,
    dispatch_fixture,
    produce_request,
)
from tests.support.fetching import answers, bases, request
from tests.support.log_lines import log_text
from tests.support.stores import as_stored, batch_of
from tests.support.wire import frame_of

METADATA = 12
PRODUCE = 9


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[DispatchFixture]:
    with dispatch_fixture(tmp_path) as fixture:
        yield fixture


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Callable[[ApiKey, Handler], None]:
    """Replace the handler of an API."""

    def put(key: ApiKey, handler: Handler) -> None:
        monkeypatch.setitem(dispatch.HANDLERS, key, handler)

    return put


def raising(error: Exception) -> Handler:
    async def handler(_request: object, _context: RequestContext, _services: Services) -> object:
        raise error

    return handler


def answering(response: object) -> Handler:
    async def handler(_request: object, _context: RequestContext, _services: Services) -> object:
        return response

    return handler


async def serves(client: DispatchClient) -> bool:
    """Whether requests on the connection are answered."""
    response = await client.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    return response.topics == []


# -- the table -------------------------------------------------------------------------------------


def test_every_handler_has_the_messages_of_its_api() -> None:
    for key, handler in HANDLERS.items():
        assert inspect.iscoroutinefunction(handler)
        api = APIS[key]
        if handler is handle_share_group_state:
            assert STATE_APIS[api.request].response is api.response, api.name
            continue
        hints = get_type_hints(handler)
        assert hints["request"] is api.request, api.name
        assert api.response in getattr(hints["return"], "__args__", (hints["return"],)), api.name


# -- what is served --------------------------------------------------------------------------------


def test_requests_are_answered_with_their_correlation_ids_in_their_version(
    fixture: DispatchFixture,
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for version in range(5):
            answer = await client.ask(
                ApiVersionsRequest(client_software_name="test", client_software_version="1"),
                version,
                ApiVersionsResponse,
            )
            assert answer.error_code == ErrorCode.NONE
            told = {key for key in HANDLERS if not APIS[key].is_private}
            assert {api.api_key for api in answer.api_keys} == told
        for version in range(METADATA + 1):
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
            (topic,) = (await client.ask(asked, version, MetadataResponse)).topics
            assert len(topic.partitions) == 2

    fixture.run(scenario())


def test_produced_batches_are_fetched_unchanged(fixture: DispatchFixture) -> None:
    """The worker reads the batches from the arena, where the socket's bytes were received."""
    batches = [batch_of(2, size=3), batch_of(1, size=200_000)]

    async def scenario() -> None:
        client = await fixture.connect()
        for batch in batches:
            produced = await client.ask(produce_request(batch, batch), PRODUCE, ProduceResponse)
            codes = [p.error_code for p in produced.responses[0].partition_responses]
            assert codes == [ErrorCode.NONE] * 2
        fetched = await client.ask(request({0: 0, 1: 0}), METADATA, FetchResponse)
        for data in answers(fetched).values():
            assert data.records == as_stored(batches[0], 0) + as_stored(batches[1], 2)

    fixture.run(scenario())


def test_pipelined_requests_are_answered_in_order_if_the_first_one_waits(
    fixture: DispatchFixture,
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        asked = request({0: 0}, max_wait_ms=60_000)
        first, second = client.post(asked, METADATA), client.post(MetadataRequest(), METADATA)
        other = await fixture.connect()
        await other.ask(produce_request(batch_of(1)), PRODUCE, ProduceResponse)
        fetched = await client.receive(first, asked, METADATA, FetchResponse)
        assert bases(answers(fetched)[0]) == [0]
        await client.receive(second, MetadataRequest(), METADATA, MetadataResponse)

    fixture.run(scenario())


def test_bytes_that_a_worker_has_not_read_are_not_overwritten(fixture: DispatchFixture) -> None:
    batch = batch_of(1, size=100_000)

    async def scenario() -> None:
        fixture.harness.worker_client.holds_back = True
        client, other = await fixture.connect(), await fixture.connect()
        asked = produce_request(batch)
        correlation_id = client.post(asked, PRODUCE)
        noise = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 249)] * 400)
        for _ in range(80):
            await other.ask(noise, METADATA, MetadataResponse)
        fixture.harness.worker_client.release_oldest()
        produced = await client.receive(correlation_id, asked, PRODUCE, ProduceResponse)
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    fixture.run(scenario())


def test_a_request_without_a_response_does_not_delay_the_next_one(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        client.post(produce_request(batch_of(1), acks=0), PRODUCE)
        assert await serves(client)

    fixture.run(scenario())


def test_requests_are_counted_by_api_and_version(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(3):
            assert await serves(client)

    before = dict(fixture.dispatcher.request_counts)
    fixture.run(scenario())
    counts = fixture.dispatcher.request_counts
    assert {
        key: counts[key] - before.get(key, 0) for key in counts if counts[key] != before.get(key)
    } == {(ApiKey.METADATA, METADATA): 3}


def test_errors_are_counted_by_api_and_frequent_requests_measured_by_correlation_id(
    fixture: DispatchFixture,
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(32):
            await client.ask(HeartbeatRequest(group_id="g", member_id="m"), 4, HeartbeatResponse)
        await client.ask(produce_request(*[batch_of(1)] * 3), PRODUCE, ProduceResponse)
        await client.ask(produce_request(batch_of(1)), PRODUCE, ProduceResponse)
        for _ in range(3):
            assert await serves(client)

    fixture.run(scenario())
    errors = fixture.dispatcher.errors.counts
    assert errors == {
        (ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR): 32,
        (ApiKey.PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1,
    }
    counts = {api_key: each.count for api_key, each in fixture.wire.request_times.totals()}
    assert counts == {ApiKey.HEARTBEAT: 2, ApiKey.METADATA: 3}


# -- what is not -----------------------------------------------------------------------------------


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    fixture: DispatchFixture,
) -> None:
    """KIP-511: with the supported versions, so that the client can continue."""

    async def scenario() -> None:
        client = await fixture.connect()
        client.send(
            encode_request_header(ApiKey.API_VERSIONS, 4, 77, "c").replace(
                struct.pack(">hh", ApiKey.API_VERSIONS, 4),
                struct.pack(">hh", ApiKey.API_VERSIONS, 99),
            )
            + b"\1\1\0"
        )
        frame = await client.frame()
        assert struct.unpack(">i", frame[:4]) == (77,)
        answer = decode_response(ApiKey.API_VERSIONS, 0, frame, 4)
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        own = APIS[ApiKey.API_VERSIONS]
        assert versions[ApiKey.API_VERSIONS] == (own.min_version, own.max_version)
        assert await serves(client)

    fixture.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">hhih", ApiKey.METADATA, 99, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, -1, 1, -1),
        struct.pack(">hhih", 12_345, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        b"",
        b"\0",
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, 500) + b"cut",
        struct.pack(">hhihi", ApiKey.METADATA, 1, 1, -1, 2**31 - 1),
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1),
    ],
    ids=[
        "version too new",
        "negative version",
        "unknown api",
        "negative api",
        "nothing",
        "one byte",
        "client id cut",
        "count without elements",
        "no body",
    ],
)
def test_a_malformed_request_closes_only_its_connection(
    fixture: DispatchFixture, body: bytes
) -> None:
    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        client.send(body)
        assert await client.is_closed()
        assert await serves(other)

    fixture.run(scenario())


def test_an_api_without_a_handler_closes_the_connection(
    fixture: DispatchFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(dispatch.HANDLERS, ApiKey.DESCRIBE_CLUSTER)

    async def scenario() -> None:
        client = await fixture.connect()
        client.post(DescribeClusterRequest(), 0)
        assert await client.is_closed()

    fixture.run(scenario())


def test_a_too_large_request_is_not_decoded(fixture: DispatchFixture) -> None:
    names = [MetadataRequestTopic(name="x" * 200)] * (DECODED_BYTES_MAX // 200 + 1)

    async def scenario() -> None:
        client = await fixture.connect()
        client.post(MetadataRequest(topics=names), METADATA)
        assert await client.is_closed()
        # The records of Produce are not decoded: there the topic's limit holds.
        client = await fixture.connect()
        large = produce_request(batch_of(1, size=DECODED_BYTES_MAX + 1))
        produced = await client.ask(large, PRODUCE, ProduceResponse)
        (partition,) = produced.responses[0].partition_responses
        assert partition.error_code == ErrorCode.MESSAGE_TOO_LARGE

    fixture.run(scenario())


def test_a_large_request_is_decoded_and_answered_in_slices(fixture: DispatchFixture) -> None:
    """Others are answered meanwhile, and the later requests of its connection afterwards."""
    names = [MetadataRequestTopic(name=f"topic-{n}") for n in range(50_000)]
    wanted = MetadataRequest(topics=names, allow_auto_topic_creation=False)

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        large = client.post(wanted, METADATA)
        small = client.post(MetadataRequest(topics=names[:1]), METADATA)
        served = 0

        async def serve_others() -> None:
            nonlocal served
            while True:
                assert await serves(other)
                served += 1

        others = asyncio.ensure_future(serve_others())  # noqa: TID251 - the test's own
        answer = await client.receive(large, wanted, METADATA, MetadataResponse)
        others.cancel()
        assert len(answer.topics) == 50_000
        assert served > 20
        last = await client.receive(small, wanted, METADATA, MetadataResponse)
        assert len(last.topics) == 1

    fixture.run(scenario())


def test_requests_behind_a_large_one_are_not_handled_before_it(
    fixture: DispatchFixture, handle: Callable[[ApiKey, Handler], None]
) -> None:
    handled: list[int] = []

    async def record(
        request: MetadataRequest, context: RequestContext, services: Services
    ) -> MetadataResponse:
        assert request.topics is not None
        handled.append(len(request.topics))
        return MetadataResponse()

    handle(ApiKey.METADATA, record)

    async def scenario() -> None:
        client = await fixture.connect()
        topic = MetadataRequestTopic(name="t" * 20)
        for count in (20_000, 1, 10_000, 2):
            client.post(MetadataRequest(topics=[topic] * count), METADATA)
        for _ in range(4):
            await client.frame()
        assert handled == [20_000, 1, 10_000, 2]

    fixture.run(scenario())


def test_a_large_malformed_request_closes_the_connection(
    fixture: DispatchFixture, caplog: pytest.LogCaptureFixture
) -> None:
    names = [MetadataRequestTopic(name="x" * 20)] * 5_000
    frame = frame_of(MetadataRequest(topics=names), METADATA, 1)

    async def scenario() -> None:
        client = await fixture.connect()
        client.send(frame[4:-1000])
        client.post(MetadataRequest(topics=[]), METADATA)
        assert await client.is_closed()
        assert await serves(await fixture.connect())

    fixture.run(scenario())
    assert "malformed Metadata request" in log_text(caplog) or "truncated" in log_text(caplog)


# -- handlers that fail ----------------------------------------------------------------------------


def test_an_api_error_becomes_the_error_code_of_the_response(
    fixture: DispatchFixture, handle: Callable[[ApiKey, Handler], None]
) -> None:
    handle(ApiKey.DESCRIBE_CLUSTER, raising(ApiError(ErrorCode.REQUEST_TIMED_OUT, "say why")))

    async def scenario() -> None:
        client = await fixture.connect()
        answer = await client.ask(DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert answer.error_message == "say why"
        assert await serves(client)

    fixture.run(scenario())


def test_an_api_error_without_a_field_closes_the_connection(
    fixture: DispatchFixture, handle: Callable[[ApiKey, Handler], None]
) -> None:
    """A response without the error would look like success."""
    handle(ApiKey.CREATE_TOPICS, raising(ApiError(ErrorCode.REQUEST_TIMED_OUT)))
    handle(ApiKey.DESCRIBE_LOG_DIRS, raising(ApiError(ErrorCode.REQUEST_TIMED_OUT)))

    async def scenario() -> None:
        client = await fixture.connect()
        client.post(CreateTopicsRequest(), 5)
        assert await client.is_closed()
        client = await fixture.connect()
        asked = DescribeLogDirsRequest(topics=None)
        answer = await client.ask(asked, 3, DescribeLogDirsResponse)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        client.post(asked, 2)  # the error code came with version 3
        assert await client.is_closed()

    fixture.run(scenario())


def test_an_unexpected_exception_is_logged_and_closes_the_connection(
    fixture: DispatchFixture,
    handle: Callable[[ApiKey, Handler], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle(ApiKey.DESCRIBE_CLUSTER, raising(KeyError("a bug")))

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        client.post(DescribeClusterRequest(), 1)
        assert await client.is_closed()
        assert await serves(other)

    with caplog.at_level(logging.ERROR):
        fixture.run(scenario())
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert log_text(caplog).startswith("a request failed api=DescribeCluster api_version=1 ")


def test_a_response_that_cannot_be_encoded_is_logged_and_closes_the_connection(
    fixture: DispatchFixture,
    handle: Callable[[ApiKey, Handler], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle(ApiKey.DESCRIBE_CLUSTER, answering(DescribeClusterResponse(cluster_id=None)))  # type: ignore[arg-type]  # the bug

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        client.post(DescribeClusterRequest(), 1)
        assert await client.is_closed()
        assert await serves(other)

    with caplog.at_level(logging.ERROR):
        fixture.run(scenario())
    assert "cannot be encoded api=DescribeCluster api_version=1\n" in log_text(caplog)


def test_a_broken_response_does_not_affect_other_replies_of_the_turn(
    fixture: DispatchFixture, handle: Callable[[ApiKey, Handler], None]
) -> None:
    """A worker's message has the replies to many requests; one response may be invalid."""

    async def broken(
        _request: ProduceRequest, _context: RequestContext, services: Services
    ) -> ProduceResponse:
        store, number = fixture.harness.place("t")
        await services.worker_client.send(DeleteRecords(UNSENT, store, number, 0))
        return ProduceResponse(responses=None)  # type: ignore[arg-type]  # the bug

    handle(ApiKey.PRODUCE, broken)

    async def scenario() -> None:
        fixture.harness.worker_client.holds_back = True
        client, other = await fixture.connect(), await fixture.connect()
        client.post(produce_request(), PRODUCE)
        assert await serves(other)
        fixture.harness.worker_client.release_oldest()
        assert await client.is_closed()
        assert await serves(other)

    fixture.run(scenario())


def test_handlers_get_the_context_of_the_request(
    fixture: DispatchFixture, handle: Callable[[ApiKey, Handler], None]
) -> None:
    seen: list[RequestContext] = []

    async def note(
        _request: object, context: RequestContext, _services: Services
    ) -> DescribeClusterResponse:
        seen.append(context)
        return DescribeClusterResponse()

    handle(ApiKey.DESCRIBE_CLUSTER, note)

    async def scenario() -> None:
        client = await fixture.connect()
        await client.ask(DescribeClusterRequest(), 1, DescribeClusterResponse)
        host, port = client.writer.get_extra_info("sockname")
        (context,) = seen
        assert (context.client_host, context.client_port) == (host, port)
        assert (context.local_host, context.local_port) == ("127.0.0.1", fixture.listener.port)
        assert (context.listener_name, context.client_id) == ("PLAINTEXT", "conformance")
        assert (context.api_key, context.api_version) == (ApiKey.DESCRIBE_CLUSTER, 1)
        assert context.correlation_id == 1

    fixture.run(scenario())

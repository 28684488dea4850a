"""Requests that somebody wants traced, over real sockets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.records import ClientQuotaChanged
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.dispatch import SLICED_BYTES_MIN
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.traces import (
    TracedRequest,
    TraceRequestsRequest,
    TraceRequestsResponse,
)
from tests.node.router.test_dispatch import METADATA, PRODUCE
from tests.support.dispatch_fixture import (
    DispatchClient,
    DispatchFixture,
    dispatch_fixture,
    produce_request,
)
from tests.support.fetching import request
from tests.support.stores import batch_of

SESSION = b"s" * 16


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[DispatchFixture]:
    with dispatch_fixture(tmp_path) as fixture:
        yield fixture


async def take(client: DispatchClient, topics: list[str] | None = None) -> list[TracedRequest]:
    """What has been traced since the last time; begins the session."""
    asked = TraceRequestsRequest(session_id=SESSION, lease_ms=30_000, topics=topics)
    answer = await client.ask(asked, 0, TraceRequestsResponse)
    assert (answer.error_code, answer.omitted_count) == (0, 0)
    return answer.requests


def limit_all_clients(fixture: DispatchFixture) -> None:
    metadata = fixture.harness.services.metadata
    quota = ClientQuotaChanged((("client-id", None),), "request_percentage", 1_000.0)
    metadata.image = image_after(metadata.image, [quota], metadata.image.offset + 1)


def names(traced: TracedRequest) -> list[str]:
    return [stage.name for stage in traced.stages]


def test_requests_are_traced_while_somebody_asks(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for is_limited in (False, True):
            # Clients with quotas of time take another way through the dispatcher.
            if is_limited:
                limit_all_clients(fixture)
            assert fixture.harness.services.client_quotas.is_active is is_limited
            await client.ask(produce_request(batch_of()), PRODUCE, ProduceResponse)
            assert await take(client) == []
            await client.ask(produce_request(batch_of()), PRODUCE, ProduceResponse)
            [traced] = await take(client)
            assert names(traced) == ["queue", "decode", "handle", "encode", "send"]
            assert (traced.topics, traced.error_codes) == (["t"], [])
            assert (traced.listener, traced.is_answered) == ("PLAINTEXT", True)
            assert traced.request_bytes > len(batch_of())
            assert traced.response_bytes > 0
            assert await take(client) == []
            fixture.harness.services.tracer.close()
            assert RequestTrace.current is None

    fixture.run(scenario())


def test_a_long_poll_has_its_wait_and_the_topics_of_its_session(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        assert await take(client, topics=["t"]) == []
        await client.ask(request({0: 0}, max_wait_ms=20, min_bytes=1), METADATA, FetchResponse)
        [traced] = await take(client)
        # In the order in which they were noted: the wait began before the first step had ended.
        assert names(traced) == [
            *("queue", "decode", "fetch_wait", "handle", "answer", "encode", "send")
        ]
        [wait] = [stage for stage in traced.stages if stage.name == "fetch_wait"]
        assert 15_000 <= wait.duration_us <= traced.duration_us

    fixture.run(scenario())


def test_errors_are_named(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await take(client)
        await client.ask(HeartbeatRequest(group_id="g", member_id="m"), 4, HeartbeatResponse)
        await client.ask(produce_request(batch_of(), b"", batch_of()), PRODUCE, ProduceResponse)
        beat, produced = await take(client)
        assert [*beat.error_codes] == [ErrorCode.NOT_COORDINATOR]
        assert sorted(produced.error_codes) == sorted(
            {ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        )

    fixture.run(scenario())


def test_a_request_that_is_decoded_in_slices_is_traced_as_a_whole(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await take(client, topics=["t"])
        wanted = ["t", *("x" * 200 for _ in range(SLICED_BYTES_MIN // 200))]
        topics = [MetadataRequestTopic(name=name) for name in wanted]
        large = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        await client.ask(large, METADATA, MetadataResponse)
        await client.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
        [traced] = await take(client)
        assert traced.request_bytes > SLICED_BYTES_MIN
        assert {"queue", "handle", "answer", "encode", "send"} <= {*names(traced)}

    fixture.run(scenario())


def test_a_request_whose_client_has_gone_is_traced_to_its_end(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        watcher, client = await fixture.connect(), await fixture.connect()
        await take(watcher)
        client.post(request({0: 0}, max_wait_ms=200, min_bytes=1), METADATA)
        purgatory = fixture.harness.services.fetch_purgatory
        async with asyncio.timeout(10):
            while not purgatory.parked_count:  # noqa: ASYNC110 - it has no event to wait on
                await asyncio.sleep(0)
        client.writer.transport.abort()
        found: list[TracedRequest] = []
        while not found:
            found = await take(watcher)
        [traced] = found
        assert not traced.is_answered
        assert "fetch_wait" in names(traced)

    fixture.run(scenario())

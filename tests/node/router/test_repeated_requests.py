"""One thing is remembered of a connection; what is decoded late hurts nobody but its sender."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router import dispatch
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.dispatch import SLICED_BYTES_MIN
from odradek.node.router.idle_fetches import IdleFetch
from odradek.node.router.produce_routes import ProduceRoutes
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.produce import ProduceResponse
from tests.support.dispatch_fixture import DispatchFixture, dispatch_fixture, produce_request
from tests.support.fetching import request
from tests.support.stores import batch_of

V7, V4 = 7, 4


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[DispatchFixture]:
    with dispatch_fixture(tmp_path) as fixture:
        yield fixture


def idle_fetch(offset: int) -> FetchRequest:
    return request({0: offset}, max_wait_ms=20, min_bytes=1, max_bytes=1 << 20)


def remembered(fixture: DispatchFixture) -> object:
    (connection,) = fixture.wire.connections.values()
    return connection.remembered


def test_a_producer_keeps_its_routes_when_it_fetches(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await client.ask(idle_fetch(0), V4, FetchResponse)
        assert isinstance(remembered(fixture), IdleFetch)
        await client.ask(produce_request(batch_of(1)), V7, ProduceResponse)
        routes = remembered(fixture)
        assert isinstance(routes, ProduceRoutes)
        for _ in range(2):
            await client.ask(idle_fetch(1), V4, FetchResponse)
        assert remembered(fixture) is routes
        await client.ask(produce_request(batch_of(1)), V7, ProduceResponse)
        assert fixture.harness.services.logs.reader(0) is not None

    fixture.run(scenario())


def test_a_request_that_is_decoded_in_slices_is_not_remembered(fixture: DispatchFixture) -> None:
    asked = idle_fetch(0)
    asked.topics[0].partitions *= SLICED_BYTES_MIN // 16

    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            response = await client.ask(asked, V4, FetchResponse)
            assert not response.responses[0].partitions[0].error_code
        assert remembered(fixture) is None

    fixture.run(scenario())


def test_a_fetch_that_fails_after_its_wait_closes_its_connection_only(
    fixture: DispatchFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Exception):
        pass

    def broken(_request: FetchRequest, _context: RequestContext, _services: Services) -> object:
        raise Broken

    asked = request({0: 0}, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)

    async def scenario() -> None:
        client = await fixture.connect()
        await client.ask(asked, V4, FetchResponse)
        client.post(asked, V4)
        purgatory = fixture.harness.services.fetch_purgatory
        async with asyncio.timeout(10):
            while not purgatory.parked_count:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        monkeypatch.setitem(dispatch.HANDLERS, ApiKey.FETCH, broken)
        fixture.harness.append("t", batch_of(1))
        assert await client.is_closed()
        other = await fixture.connect()
        response = await other.ask(produce_request(batch_of(1)), V7, ProduceResponse)
        assert not response.responses[0].partition_responses[0].error_code

    fixture.run(scenario())
    assert any(record.exc_info and record.exc_info[0] is Broken for record in caplog.records)

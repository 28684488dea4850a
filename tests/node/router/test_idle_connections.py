"""Idle consumers' connections that are taken from the transport and given back: clients notice
nothing.
"""

import asyncio
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.fetch_purgatory import TICK_S
from odradek.node.router.idle_connections import (
    LONG_WAIT_MS,
    PER_TURN_MAX,
    REPEATS_MIN,
    UNUSED_S,
    IdleConnections,
    tick_after,
)
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tests.node.router.test_idle_fetches import (
    FIRST,
    SOON_MS,
    V4,
    SessionConsumer,
    ask,
    fetch,
    until_parked,
)
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient, DispatchFixture, dispatch_fixture
from tests.support.stores import batch_of
from tests.support.wire import frame_of

VERSIONS = range(4, APIS[ApiKey.FETCH].max_version + 1)
DEADLINE_S = 10.0
LONG_MS = 5_000


@pytest.mark.parametrize("early_s", [0.0, 0.001])
def test_who_asks_again_at_a_tick_waits_for_the_whole_time(early_s: float) -> None:
    """Also if the clock of the loop, a float of milliseconds, is a little before the tick."""
    for tick in range(0, 1_000_000, 5):
        after = tick_after(tick * TICK_S - early_s, LONG_WAIT_MS)
        assert after * TICK_S - tick * TICK_S == pytest.approx(LONG_WAIT_MS / 1000)


@pytest.mark.parametrize("wait_ms", [1, 100, LONG_WAIT_MS - 1, LONG_WAIT_MS, LONG_MS])
def test_a_fetch_waits_its_time_or_a_tenth_less(wait_ms: int) -> None:
    early_s = wait_ms / 10_000 if wait_ms >= LONG_WAIT_MS else 0
    for tenths in range(1_000):
        now_s = 1234.5 + tenths * TICK_S / 10
        waits_s = tick_after(now_s, wait_ms) * TICK_S - now_s
        assert wait_ms / 1000 - early_s - 1e-6 <= waits_s <= wait_ms / 1000 + TICK_S + 1e-6


class IdleFixture:
    """A router that takes connections."""

    def __init__(self, fixture: DispatchFixture) -> None:
        self.fixture = fixture
        self.harness = fixture.harness
        self.run = fixture.run
        self.connect = fixture.connect
        self.idle = IdleConnections(
            fixture.harness.services, fixture.wire, fixture.dispatcher.idle_fetches
        )

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.fixture.loop.time() + DEADLINE_S
        while not condition():
            assert self.fixture.loop.time() < deadline, "the condition never came to hold"
            await asyncio.sleep(0.001)

    async def taken(self, asked: FetchRequest | None = None, version: int = V4) -> DispatchClient:
        """A client whose connection is taken."""
        count, client = self.idle.count, await self.connect()
        for _ in range(1 + REPEATS_MIN):
            await ask(client, asked or fetch(), version)
        await self.until(lambda: self.idle.count == count + 1)
        return client

    def requests(self, version: int = V4) -> int:
        return self.fixture.dispatcher.request_counts.get((ApiKey.FETCH, version), 0)


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[IdleFixture]:
    with dispatch_fixture(tmp_path) as dispatch:
        for partition in (0, 1):
            dispatch.harness.append("t", batch_of(FIRST), partition=partition)
        fixture = IdleFixture(dispatch)
        yield fixture
        fixture.idle.stop()
        assert not fixture.idle.count
        fixture.idle.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_responses_have_the_same_bytes(fixture: IdleFixture, version: int) -> None:
    async def scenario() -> None:
        client = await fixture.taken(version=version)
        other = await fixture.connect()
        before = fixture.requests(version)
        frame = frame_of(fetch(), version, 0x1234)
        for _ in range(3):
            client.writer.write(frame)
            found = bytes(await client.frame())
            assert fixture.idle.count
            other.writer.write(frame)
            assert found == bytes(await other.frame())
        assert fixture.requests(version) == before + 6

    fixture.run(scenario())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_waiting_fetch_is_woken_by_a_record(fixture: IdleFixture, version: int) -> None:
    asked = fetch(0, 1, wait_ms=LONG_MS)

    async def scenario() -> None:
        client = await fixture.taken(fetch(0, 1), version)
        await take_with(fixture, client, asked, version)
        correlation_id = client.post(asked, version)
        await fixture.until(lambda: waits(fixture))
        fixture.harness.now_ms += 60
        fixture.harness.append("t", batch_of(1), partition=1)
        answer = await client.receive(correlation_id, asked, version, FetchResponse)
        assert [len(data.records or b"") > 0 for data in partitions_of(answer)] == [False, True]
        assert not fixture.idle.count

    fixture.run(scenario())


async def take_with(
    fixture: IdleFixture, client: DispatchClient, asked: FetchRequest, version: int
) -> None:
    """Let the connection be taken with another request, without waiting for its time."""
    for _ in range(1 + REPEATS_MIN):
        correlation_id = client.post(asked, version)
        await until_parked(fixture.fixture)
        await fixture.until(lambda: not fixture.idle.count)
        fixture.harness.services.fetch_purgatory.end_all(later_wait_ms_max=LONG_MS)
        await client.receive(correlation_id, asked, version, FetchResponse)
    await fixture.until(lambda: fixture.idle.count)


def partitions_of(answer: FetchResponse) -> list[PartitionData]:
    return [data for topic in answer.responses for data in topic.partitions]


def waits(fixture: IdleFixture) -> bool:
    """Whether the only connection's request has been read."""
    ((idle,),) = [fixture.idle._by_descriptor.values()]
    return idle.correlation_id is not None


def test_the_rest_of_the_time_is_waited(fixture: IdleFixture) -> None:
    """A record comes that is not enough."""
    asked = fetch(wait_ms=200, min_bytes=1_000_000)

    async def scenario() -> None:
        client = await fixture.taken(asked)
        correlation_id = client.post(asked, V4)
        await fixture.until(lambda: waits(fixture))
        fixture.harness.now_ms += 190
        began = fixture.fixture.loop.time()
        fixture.harness.append("t", batch_of(1))
        answer = await client.receive(correlation_id, asked, V4, FetchResponse)
        assert partitions_of(answer)[0].records
        assert fixture.fixture.loop.time() - began < 0.15

    fixture.run(scenario())


@pytest.mark.parametrize("wait_ms", [LONG_WAIT_MS - 1, LONG_WAIT_MS, LONG_WAIT_MS + 77])
def test_its_wait_ends_near_its_time(fixture: IdleFixture, wait_ms: int) -> None:
    async def scenario() -> None:
        client = await fixture.taken(fetch(wait_ms=wait_ms))
        started_s = fixture.fixture.loop.time()
        await ask(client, fetch(wait_ms=wait_ms), V4)
        waited_ms = (fixture.fixture.loop.time() - started_s) * 1000
        early_ms = wait_ms / 10 if wait_ms >= LONG_WAIT_MS else 0
        assert waited_ms > wait_ms - early_ms - 2  # The loop's clock counts milliseconds.
        assert fixture.idle.count == 1

    fixture.run(scenario())


@pytest.mark.parametrize("version", [7, VERSIONS[-1]])
def test_a_connection_with_a_fetch_session_is_taken(fixture: IdleFixture, version: int) -> None:
    async def scenario() -> None:
        consumer = SessionConsumer(await fixture.connect(), version, wait_ms=150)
        await consumer.open()
        for _ in range(1 + REPEATS_MIN):
            assert not await consumer.poll()
        await fixture.until(lambda: fixture.idle.count)
        for _ in range(3):
            assert not await consumer.poll()
            assert fixture.idle.count == 1
        asked = consumer.next()
        correlation_id = consumer.client.post(asked, version)
        await fixture.until(lambda: waits(fixture))
        fixture.harness.append("t", batch_of(1))
        answer = await consumer.client.receive(correlation_id, asked, version, FetchResponse)
        assert partitions_of(answer)[0].records
        consumer.epoch += 1
        assert (await consumer.poll())[0].records
        asked.session_epoch = consumer.epoch + 5
        wrong = await consumer.client.ask(asked, version, FetchResponse)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    fixture.run(scenario())


def test_a_record_between_two_requests_is_found(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        fixture.harness.append("t", batch_of(1))
        assert (await ask(client, fetch(), V4))[0].records
        assert not fixture.idle.count
        assert not (await ask(client, fetch(offset=FIRST + 1), V4))[0].records

    fixture.run(scenario())


def test_another_request_waits_for_the_response_before_it(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        asked, other = fetch(), ApiVersionsRequest()
        first = client.post(asked, V4)
        await fixture.until(lambda: waits(fixture))
        second = client.post(other, 0)
        await fixture.until(lambda: not fixture.idle.count)
        assert not partitions_of(await client.receive(first, asked, V4, FetchResponse))[0].records
        await client.receive(second, other, 0, ApiVersionsResponse)
        await client.ask(other, 0, ApiVersionsResponse)

    fixture.run(scenario())


@pytest.mark.parametrize("at", [2, 11, 40])
def test_a_request_may_come_in_pieces(fixture: IdleFixture, at: int) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        frame = frame_of(fetch(), V4, 77)
        client.writer.write(frame[:at])
        await fixture.until(lambda: not fixture.idle.count)
        client.writer.write(frame[at:])
        assert bytes(await client.frame())[:4] == struct.pack(">i", 77)

    fixture.run(scenario())


def test_requests_that_come_at_once_are_answered_in_order(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        client.writer.write(b"".join(frame_of(fetch(wait_ms=1), V4, each) for each in range(50)))
        for each in range(50):
            assert bytes(await client.frame())[:4] == struct.pack(">i", each)

    fixture.run(scenario())


def test_a_malformed_request_closes_its_connection(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client, other = await fixture.taken(), await fixture.taken()
        client.writer.write(struct.pack(">i", -5) + bytes(60))
        assert await client.is_closed()
        await ask(other, fetch(), V4)
        assert fixture.idle.count == 1

    fixture.run(scenario())


def test_a_client_that_goes_leaves_nothing_behind(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        gone, waiting = await fixture.taken(), await fixture.taken()
        gone.writer.close()
        waiting.post(fetch(wait_ms=SOON_MS), V4)
        waiting.writer.transport.abort()
        await fixture.until(lambda: not fixture.fixture.wire.connections)
        assert not fixture.idle.count
        assert not fixture.harness.services.fetch_purgatory.parked_count

    fixture.run(scenario())


def test_a_connection_that_the_router_closes_leaves_nothing_behind(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        (connection,) = fixture.fixture.wire.connections.values()
        connection.abort()
        assert await client.is_closed()
        assert not fixture.idle.count
        client = await fixture.taken()
        (connection,) = fixture.fixture.wire.connections.values()
        connection.close()
        assert await client.is_closed()
        assert not fixture.idle.count

    fixture.run(scenario())


def test_a_client_that_does_not_read_is_left_to_its_connection(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken(fetch(wait_ms=1))
        (connection,) = fixture.fixture.wire.connections.values()
        descriptor = connection.descriptor()
        assert descriptor is not None
        junk = 0
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as server:
            server.setblocking(False)
            while is_writable(server):
                with suppress(BlockingIOError):
                    junk += server.send(bytes(1 << 16))
        client.writer.write(frame_of(fetch(wait_ms=1), V4, 5))
        await fixture.until(lambda: not fixture.idle.count)
        client.writer.write(frame_of(fetch(wait_ms=1), V4, 6))
        assert not any(await client.reader.readexactly(junk))
        for each in (5, 6):
            assert bytes(await client.frame())[:4] == struct.pack(">i", each)

    fixture.run(scenario())


def is_writable(connected: socket.socket) -> bool:
    """Not select(), which takes no descriptors above 1,023."""
    events = select.poll()
    events.register(connected, select.POLLOUT)
    return bool(events.poll(0))


def lose_leadership(fixture: IdleFixture) -> None:
    fixture.harness.lead("t", epoch=7, leader=2)


def deny_reads(fixture: IdleFixture) -> None:
    fixture.harness.deny(AclOperation.READ, ResourceType.TOPIC, "t")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lose_leadership, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (deny_reads, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_it_ends_when_what_it_was_made_of_changes(
    fixture: IdleFixture, change: Callable[[IdleFixture], None], code: ErrorCode
) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        change(fixture)
        for _ in range(2):
            (data,) = await ask(client, fetch(), V4)
            assert data.error_code == code
        assert not fixture.idle.count

    fixture.run(scenario())


def test_traces_have_its_requests(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken()
        session = fixture.harness.services.tracer.renew(
            b"s" * 16, "User:ANONYMOUS", TraceFilter(), 60_000
        )
        await ask(client, fetch(), V4)
        assert len(session.take()[0]) == 1
        assert not fixture.idle.count

    fixture.run(scenario())


def test_its_requests_are_counted_measured_and_seen_as_activity(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        client = await fixture.taken(fetch(wait_ms=1))
        for _ in range(16):
            await ask(client, fetch(wait_ms=1), V4)
        fixture.harness.now_ms += 1_000
        await ask(client, fetch(wait_ms=1), V4)
        now_ms = fixture.harness.now_ms + 5
        activity = fixture.harness.services.fetch_activity
        (reader,) = activity.of_topic("t", topic_id(1), now_ms)[0]
        assert reader.fetch_idle_ms == 5
        (connection,) = fixture.fixture.wire.connections.values()
        count = 1 + REPEATS_MIN + 17
        assert fixture.idle.count == 1
        assert connection.request_count == fixture.fixture.wire.counters.requests == count
        assert fixture.requests() == count
        counts = {key: each.count for key, each in fixture.fixture.wire.request_times.totals()}
        assert counts == {ApiKey.FETCH: count // 16}

    fixture.run(scenario())


def test_a_silent_client_goes_back_to_the_rules_for_idle_connections(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        await fixture.taken()
        await asyncio.wait_for(fixture.until(lambda: not fixture.idle.count), 3 * UNUSED_S)
        (connection,) = fixture.fixture.wire.connections.values()
        assert connection.overdue(1 << 60) == "idle"

    fixture.run(scenario())


def test_a_stopping_router_gives_all_back(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        waiting, silent = await fixture.taken(), await fixture.taken()
        asked = fetch()
        correlation_id = waiting.post(asked, V4)
        await fixture.until(lambda: fixture.requests() >= 2 * (1 + REPEATS_MIN))
        fixture.idle.stop()
        assert not fixture.idle.count
        await waiting.receive(correlation_id, asked, V4, FetchResponse)
        for client in (waiting, silent):
            for _ in range(2 + REPEATS_MIN):
                await ask(client, asked, V4)
        assert not fixture.idle.count

    fixture.run(scenario())


def test_very_many_are_answered_in_several_turns(fixture: IdleFixture) -> None:
    async def scenario() -> None:
        asked = fetch(wait_ms=100)
        clients = [await fixture.connect() for _ in range(PER_TURN_MAX + 20)]
        for _ in range(3 + REPEATS_MIN):
            await asyncio.gather(*(ask(client, asked, V4) for client in clients))
        assert fixture.idle.count == len(clients)
        fixture.harness.append("t", batch_of(1))
        found = await asyncio.gather(*(ask(client, asked, V4) for client in clients))
        assert all(data.records for (data,) in found)

    fixture.run(scenario())

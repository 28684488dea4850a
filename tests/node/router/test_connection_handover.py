"""Connections that are handed over to a worker and taken back: clients notice nothing.

The worker's side is the real one, driven by the test's loop.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged
from odradek.node.bus.connection_handover import READ_BYTES, handover_path, listen
from odradek.node.router.connection_handover import (
    HANDOVER_AFTER_MAX,
    SERVED_MIN,
    ConnectionHandover,
)
from odradek.node.router.produce_routes import (
    HANDED_BATCH_BYTES_MAX,
    HANDED_TRANSACTION_BYTES_MAX,
    HANDOVER_AFTER,
    HANDOVER_AFTER_MIN,
    ProduceRoutes,
)
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.node.wire.connection import Connection
from odradek.node.worker.handed_connections import LARGE_WINDOW_S, HandedConnections
from odradek.node.worker.handed_fetches import HandedFetches
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.storage.layout import store_folder
from odradek.storage.reader import StoreReader
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient, DispatchFixture, dispatch_fixture
from tests.support.group_harness import GroupHarness
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of
from tests.support.transaction_dialogue import TransactionDialogue
from tests.support.wire import frame_of

FLEXIBLE = 9
DEADLINE_S = 10.0


class HandoverFixture:
    """A router with a worker that takes connections over. `turns` carries out appends."""

    def __init__(self, fixture: DispatchFixture, folder: Path) -> None:
        self.fixture = fixture
        self.folder = folder
        self.run = fixture.run
        self.connect = fixture.connect
        self.is_stuck = False
        """The worker reads requests and does not answer."""
        self.waiting: list[tuple[RouterState, Request]] = []
        """What it has read."""
        self.start_worker()
        self.handover = ConnectionHandover(
            fixture.harness.services, fixture.wire, folder, fixture.dispatcher
        )

    def start_worker(self, index: int = 0) -> None:
        harness = self.fixture.harness
        stores = (self.folder / "stores",)
        fetches = HandedFetches[Any](
            lambda store: StoreReader(store_folder(stores, store)),
            harness.turns.awaited,
            harness.turns.advanced,
        )
        self.fetches = fetches
        self.used_s = 0.0
        """Processor time of the worker."""
        self.worker = HandedConnections(
            handover_path(self.folder, index),
            harness.partitions.has_transaction,
            fetches,
            used_s=lambda: self.used_s,
        )
        self.fixture.loop.add_reader(self.worker.fileno(), self._pump)
        self._serve_due()

    def stop_worker(self) -> None:
        self._timer.cancel()
        self.fixture.loop.remove_reader(self.worker.fileno())
        self.worker.close()

    def _serve_due(self) -> None:
        self.worker.serve_due(monotonic())
        self._timer = self.fixture.loop.call_later(0.002, self._serve_due)

    def _pump(self) -> None:
        self.waiting += self.worker.receive()
        if self.waiting and not self.is_stuck:
            requests, self.waiting = self.waiting, []
            self.fixture.harness.turns.run(requests, NOW_MS)
        self.worker.send_replies()

    @property
    def connection(self) -> Connection:
        """The only one."""
        (connection,) = self.fixture.wire.connections.values()
        return connection

    @property
    def routes(self) -> ProduceRoutes:
        """Of the only connection."""
        routes = self.connection.remembered
        assert isinstance(routes, ProduceRoutes)
        return routes

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.fixture.loop.time() + DEADLINE_S
        while not condition():
            assert self.fixture.loop.time() < deadline, "the condition never came to hold"
            await asyncio.sleep(0.001)

    async def handed_over(self, *, indexes: tuple[int, ...] = (0,)) -> DispatchClient:
        """A client whose connection the worker has."""
        client = await self.connect()
        for number in range(HANDOVER_AFTER + len(indexes)):
            assert not (await ask(client, index=indexes[number % len(indexes)])).error_code
        await self.until(lambda: self.worker.count)
        assert self.handover.count == 1
        return client


@contextmanager
def handover_fixture(
    folder: Path, harness_type: type[RouterHarness] = RouterHarness
) -> Iterator[HandoverFixture]:
    with dispatch_fixture(folder, harness_type) as dispatch:
        fixture = HandoverFixture(dispatch, folder)
        yield fixture
        fixture.handover.stop()
        fixture.run(fixture.until(lambda: not fixture.handover.count))
        fixture.handover.close()
        fixture.stop_worker()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[HandoverFixture]:
    with handover_fixture(tmp_path) as fixture:
        yield fixture


def request_of(batch: bytes, index: int = 0) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=memoryview(batch))]
    topics = [TopicProduceData(name="t", topic_id=topic_id(1), partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics)


async def ask(
    client: DispatchClient, batch: bytes = batch_of(1), *, index: int = 0, version: int = FLEXIBLE
) -> PartitionProduceResponse:
    response = await client.ask(request_of(batch, index), version, ProduceResponse)
    ((partition,),) = [topic.partition_responses for topic in response.responses]
    return partition


def produced(fixture: HandoverFixture) -> int:
    """Produce requests by the router's count."""
    return fixture.fixture.dispatcher.request_counts.get((ApiKey.PRODUCE, FLEXIBLE), 0)


@pytest.mark.parametrize("version", [3, 7, 9, 12, 13])
def test_a_connection_that_repeats_itself_is_handed_over(
    fixture: HandoverFixture, version: int
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for offset in range(3 * HANDOVER_AFTER):
            partition = await ask(client, version=version)
            assert (partition.error_code, partition.base_offset) == (0, offset)
        assert fixture.handover.count == fixture.worker.count == 1

    fixture.run(scenario())


def test_the_response_has_the_same_bytes(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        other = await fixture.connect()
        frame = frame_of(request_of(batch_of(1)), FLEXIBLE, 7)
        frames = []
        for each in (client, other):
            each.writer.write(frame)
            frames.append(bytes(await each.frame()))
        first, second = frames
        end = HANDOVER_AFTER + 1
        assert first.replace(struct.pack(">q", end), struct.pack(">q", end + 1)) == second

    fixture.run(scenario())


def test_requests_that_are_under_way_are_answered_in_order(fixture: HandoverFixture) -> None:
    """A client that never waits: the connection changes hands in the middle."""

    async def scenario() -> None:
        client = await fixture.connect()
        for round_number in range(20):
            first = round_number * 100
            client.writer.write(
                b"".join(
                    frame_of(request_of(batch_of(1)), FLEXIBLE, first + number)
                    for number in range(100)
                )
            )
        for number in range(2_000):
            frame = await client.frame()
            assert struct.unpack_from(">i", frame) == (number,)
        assert fixture.handover.handed_over_count
        assert (await ask(client)).base_offset == 2_000

    fixture.run(scenario())


def test_other_requests_come_back_in_their_order(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        base = HANDOVER_AFTER + 1
        for correlation_id in (1, 2):
            client.writer.write(frame_of(request_of(batch_of(1)), FLEXIBLE, correlation_id))
        client.writer.write(frame_of(ApiVersionsRequest(), 0, 3))
        client.writer.write(frame_of(request_of(batch_of(1)), FLEXIBLE, 4))
        for correlation_id in (1, 2, 3, 4):
            assert struct.unpack_from(">i", await client.frame()) == (correlation_id,)
        assert (await ask(client)).base_offset == base + 3
        assert not fixture.handover.count

    fixture.run(scenario())


def test_another_partition_is_learned(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        assert (await ask(client, index=1)).base_offset == 0
        assert fixture.handover.count == 0
        while fixture.handover.count == 0:
            await ask(client)
        for offset in range(1, 50):
            assert (await ask(client, index=1)).base_offset == offset
        assert fixture.handover.count

    fixture.run(scenario())


def test_a_very_large_batch_comes_back(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        for _ in range(3):
            partition = await ask(client, batch_of(1, size=2 * HANDED_BATCH_BYTES_MAX))
            assert partition.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert not fixture.handover.count
        assert (await ask(client)).base_offset == HANDOVER_AFTER + 1

    fixture.run(scenario())


@pytest.mark.parametrize("size", [70_000, 100_000, 300_000, 1_000_000])
def test_large_batches_are_served_by_the_worker(fixture: HandoverFixture, size: int) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for offset in range(2 * HANDOVER_AFTER):
            batch = batch_of(1, size=size + 1_000 * (offset % 3))
            assert (await ask(client, batch)).base_offset == offset
        assert fixture.handover.count == 1
        assert (await ask(client)).base_offset == 2 * HANDOVER_AFTER
        assert fixture.handover.count == 1

    fixture.run(scenario())


@pytest.mark.parametrize("is_changed", [True, False])
def test_the_limit_of_requests_holds_for_the_worker(
    fixture: HandoverFixture, is_changed: bool
) -> None:
    async def scenario() -> None:
        settings = fixture.fixture.wire.settings
        if not is_changed:
            settings.request_bytes_max = 100_000
        client = await fixture.handed_over()
        if is_changed:
            settings.request_bytes_max = 100_000
            await fixture.until(lambda: not fixture.handover.count)
        client.post(request_of(batch_of(1, size=100_000)), FLEXIBLE)
        assert await client.is_closed()

    fixture.run(scenario())


@pytest.mark.parametrize("at", [2, 50, 5_000, 200_000, 900_000])
def test_a_connection_may_come_back_within_a_large_request(
    fixture: HandoverFixture, at: int
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        batch = batch_of(1, size=900_000)
        for _ in range(HANDOVER_AFTER + 1):
            assert not (await ask(client, batch)).error_code
        await fixture.until(lambda: fixture.handover.count)
        frame = frame_of(request_of(batch), FLEXIBLE, 8)
        client.writer.write(frame[:at])
        await client.writer.drain()
        fixture.handover.stop()
        await fixture.until(lambda: not fixture.handover.count)
        client.writer.write(frame[at:] + frame_of(request_of(batch), FLEXIBLE, 9))
        for correlation_id in (8, 9):
            assert struct.unpack_from(">i", await client.frame()) == (correlation_id,)
        assert (await ask(client)).base_offset == HANDOVER_AFTER + 3

    fixture.run(scenario())


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_busy_worker_gives_producers_of_large_batches_back(
    fixture: HandoverFixture, size: int
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(HANDOVER_AFTER + 3):
            await ask(client, batch_of(1, size=size))
        assert fixture.handover.count == 1
        window_s = monotonic() + 2 * LARGE_WINDOW_S
        fixture.worker.tick(window_s)  # the next window begins here
        fixture.used_s = 1.5 * LARGE_WINDOW_S
        fixture.worker.tick(window_s + 1.5 * LARGE_WINDOW_S)
        is_away = fixture.worker.count == 1
        assert is_away is (size == 10)
        if not is_away:
            await fixture.until(lambda: not fixture.handover.count)
            assert fixture.routes.handover_after > HANDOVER_AFTER
        assert not (await ask(client)).error_code

    fixture.run(scenario())


def test_a_refused_batch_has_the_response_of_the_router(fixture: HandoverFixture) -> None:
    """Behind one that was appended, and before others."""

    def batch(sequence: int) -> bytes:
        return batch_of(1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async def scenario() -> None:
        client = await fixture.connect()
        for sequence in range(HANDOVER_AFTER + 1):
            assert not (await ask(client, batch(sequence))).error_code
        await fixture.until(lambda: fixture.handover.count)
        sequences = (HANDOVER_AFTER + 1, HANDOVER_AFTER + 9, HANDOVER_AFTER + 2)
        posted = [client.post(request_of(batch(sequence)), FLEXIBLE) for sequence in sequences]
        codes = []
        for correlation_id in posted:
            response = await client.receive(
                correlation_id, request_of(b""), FLEXIBLE, ProduceResponse
            )
            codes.append(response.responses[0].partition_responses[0].error_code)
        assert codes == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
        assert fixture.fixture.dispatcher.errors.counts

    fixture.run(scenario())


def deny_writes(fixture: HandoverFixture) -> None:
    fixture.fixture.harness.deny(AclOperation.WRITE, ResourceType.TOPIC, "t")


def set_a_quota(fixture: HandoverFixture) -> None:
    quota = ClientQuotaChanged((("client-id", "x"),), "producer_byte_rate", 1e9)
    fixture.fixture.harness.controller.write(quota)
    fixture.fixture.harness.follow()


def trace(fixture: HandoverFixture) -> None:
    tracer = fixture.fixture.harness.services.tracer
    tracer.renew(b"s" * 16, "User:ANONYMOUS", TraceFilter(), 60_000)


@pytest.mark.parametrize("change", [deny_writes, set_a_quota, trace])
def test_a_connection_is_recalled_when_something_changes(
    fixture: HandoverFixture, change: Callable[[HandoverFixture], None]
) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        change(fixture)
        await fixture.until(lambda: not fixture.handover.count)
        expected = ErrorCode.TOPIC_AUTHORIZATION_FAILED if change is deny_writes else 0
        for _ in range(2 * HANDOVER_AFTER):
            assert (await ask(client)).error_code == expected
        assert fixture.handover.handed_over_count == 1

    fixture.run(scenario())


def test_a_replaced_leader_is_answered_like_always(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.fixture.harness.lead("t", epoch=7, leader=2)
        partition = await ask(client)
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    fixture.run(scenario())


def test_requests_are_counted_wherever_they_are_answered(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        count = 10 * HANDOVER_AFTER
        for _ in range(count):
            await ask(client)
        fixture.worker.tick(1.0)
        await fixture.until(lambda: produced(fixture) == count)
        wire = fixture.fixture.wire
        assert wire.counters.requests == count == fixture.connection.request_count
        request = frame_of(request_of(batch_of(1)), FLEXIBLE, 1)
        assert wire.counters.received_bytes == count * len(request)
        ((api_key, total),) = wire.request_times.totals()
        assert (api_key, total.count) == (ApiKey.PRODUCE, count // 16)

    fixture.run(scenario())


def test_a_client_that_leaves_is_forgotten(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        client.writer.close()
        await fixture.until(lambda: not fixture.fixture.wire.connections)
        assert not fixture.handover.count
        assert not fixture.worker.count

    fixture.run(scenario())


def test_a_connection_that_is_closed_gets_its_responses(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.is_stuck = True
        client.writer.write(frame_of(request_of(batch_of(1)), FLEXIBLE, 5))
        await fixture.until(lambda: fixture.waiting)
        fixture.connection.close()
        fixture.is_stuck = False
        frame = await client.frame()
        assert struct.unpack_from(">i", frame) == (5,)
        assert await client.is_closed()

    fixture.run(scenario())


def test_an_aborted_connection_is_closed_by_the_worker_too(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.is_stuck = True
        client.writer.write(frame_of(request_of(batch_of(1)), FLEXIBLE, 5))
        await fixture.until(lambda: fixture.waiting)
        fixture.connection.abort()
        assert await client.is_closed()
        await fixture.until(lambda: not fixture.worker.count)

    fixture.run(scenario())


def test_connections_of_a_worker_that_is_gone_are_closed(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.stop_worker()
        assert await client.is_closed()
        assert not fixture.handover.count
        fixture.start_worker()
        await fixture.handed_over()

    fixture.run(scenario())


def test_without_a_worker_nothing_is_handed_over(fixture: HandoverFixture) -> None:
    fixture.stop_worker()

    async def scenario() -> None:
        client = await fixture.connect()
        for offset in range(3 * HANDOVER_AFTER):
            assert (await ask(client)).base_offset == offset
        assert not fixture.handover.handed_over_count

    fixture.run(scenario())
    fixture.start_worker()


def test_the_number_of_workers_may_change(fixture: HandoverFixture) -> None:
    """The next owner of the store gets the connection, not the one of before."""

    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.stop_worker()
        assert await client.is_closed()
        fixture.fixture.harness.worker_client.worker = 1
        fixture.start_worker(1)
        with listen(handover_path(fixture.folder, 0)) as former:
            await fixture.handed_over()
            with pytest.raises(BlockingIOError):
                former.accept()

    fixture.run(scenario())


@pytest.mark.parametrize("version", [11, 12])
def test_a_connection_in_transactions_is_handed_over_in_each(tmp_path: Path, version: int) -> None:
    """The first batch of each and its end are the router's, and no batch comes after a marker."""

    async def scenario(fixture: HandoverFixture) -> None:
        producer = TransactionDialogue(await fixture.connect(), version)
        await producer.begin()
        count = 2 * HANDOVER_AFTER + SERVED_MIN
        for transaction in range(1, 4):
            if version < 12:
                await producer.add()
            for _ in range(count):
                assert await producer.send() == ErrorCode.NONE
            assert fixture.handover.count == fixture.worker.count == 1
            await producer.end()
            await producer.wait_until_complete()
            assert fixture.handover.handed_over_count == transaction
            store, number = fixture.fixture.harness.place("t", 0)
            log = fixture.fixture.harness.partitions.stores[store].partitions()[number]
            assert log.log_end_offset == log.last_stable_offset == transaction * (count + 1)

    with handover_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_large_batches_of_transactions_are_the_routers(tmp_path: Path) -> None:
    async def scenario(fixture: HandoverFixture) -> None:
        producer = TransactionDialogue(await fixture.connect(), 12)
        await producer.begin()
        for _ in range(2 * HANDOVER_AFTER):
            assert await producer.send(HANDED_TRANSACTION_BYTES_MAX) == ErrorCode.NONE
        assert not fixture.handover.handed_over_count
        for size in (10, READ_BYTES, 1_000_000):
            while not fixture.handover.count:
                assert await producer.send() == ErrorCode.NONE
            assert await producer.send(size) == ErrorCode.NONE
            assert fixture.handover.count == (size == 10)
        await producer.end()
        await producer.wait_until_complete()

    with handover_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_a_stopping_router_has_all_back(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        fixture.handover.stop()
        await fixture.until(lambda: not fixture.handover.count)
        for _ in range(2 * HANDOVER_AFTER):
            assert not (await ask(client)).error_code
        assert fixture.handover.handed_over_count == 1

    fixture.run(scenario())


def test_a_connection_that_comes_back_soon_stays_longer(fixture: HandoverFixture) -> None:
    async def scenario() -> None:
        client = await fixture.handed_over()
        await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert fixture.routes.handover_after == 4 * HANDOVER_AFTER < HANDOVER_AFTER_MAX
        for _ in range(4 * HANDOVER_AFTER):
            assert not fixture.handover.count
            await ask(client)
        await fixture.until(lambda: fixture.handover.count)
        for expected in (HANDOVER_AFTER, HANDOVER_AFTER_MIN, HANDOVER_AFTER_MIN):
            await fixture.until(lambda: fixture.handover.count)
            for _ in range(SERVED_MIN):
                await ask(client)
            await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            assert fixture.routes.handover_after == expected
            for _ in range(expected):
                await ask(client)

    fixture.run(scenario())

"""Consumers that follow a partition and are answered by its worker: they notice nothing.

The worker's side is the real one, driven by the test's loop.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged
from odradek.node.bus.messages import WriteMarker
from odradek.node.router.connection_handover import CONSUMERS_MAX, SERVED_MIN
from odradek.node.router.fetch_routes import FEW_BYTES_MAX, HANDOVER_AFTER
from odradek.node.router.idle_fetches import IdleFetch
from odradek.node.router.single_fetches import WAIT_MS_MAX
from odradek.node.worker.busy_share import WINDOW_S
from odradek.node.worker.handed_connections import IDLE_S
from odradek.node.worker.handed_fetches import RECORD_BYTES_MAX
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.records import TRANSACTIONAL
from tests.node.router.test_connection_handover import (
    HandoverFixture,
    handover_fixture,
    trace,
)
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient
from tests.support.stores import NOW_MS, as_stored, batch_of
from tests.support.waiting import is_readable
from tests.support.wire import frame_of

VERSIONS = range(5, APIS[ApiKey.FETCH].max_version + 1)
NEWEST = VERSIONS[-1]
SESSIONS_SINCE, FLEXIBLE_SINCE = 7, 12
FOLLOWERS_SINCE = 11
"""The first version that followers answer."""
SESSION_ID_AT = 10
"""In a response. One byte further in flexible ones."""
LONG_MS = 5_000
BATCH = batch_of(1)


class TailConsumer:
    """A consumer that follows partition 0 of `t`, with a fetch session or without."""

    def __init__(
        self,
        client: DispatchClient,
        version: int = NEWEST,
        *,
        has_session: bool = False,
        isolation_level: int = 0,
        wait_ms: int = LONG_MS,
    ) -> None:
        self.client = client
        self.version = version
        self.has_session = has_session
        self.isolation_level = isolation_level
        self.wait_ms = wait_ms
        self.partition_bytes_max = 1 << 20
        self.last_fetched_epoch = -1
        self.offset = self.told_offset = self.session_id = 0
        self.epoch = 0 if has_session else -1
        self.data = PartitionData()
        """What the last response says of the partition."""

    def request(self) -> FetchRequest:
        asked = FetchPartition(
            partition=0,
            fetch_offset=self.offset,
            partition_max_bytes=self.partition_bytes_max,
            last_fetched_epoch=self.last_fetched_epoch,
        )
        is_told = self.epoch > 0 and self.told_offset == self.offset
        topic = FetchTopic(topic="t", topic_id=topic_id(1), partitions=[asked])
        return FetchRequest(
            max_wait_ms=self.wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=self.isolation_level,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[] if is_told else [topic],
        )

    def post(self) -> int:
        return self.client.post(self.request(), self.version)

    async def receive(self, correlation_id: int, records: int = 1) -> bytes:
        """The records of the response, which move the consumer."""
        answer = await self.client.receive(
            correlation_id, self.request(), self.version, FetchResponse
        )
        assert not answer.error_code
        assert not self.has_session or self.epoch == 0 or answer.session_id == self.session_id
        self.told_offset = self.offset
        if self.has_session:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        found = [data for topic in answer.responses for data in topic.partitions]
        if not found:
            assert self.has_session
            return b""
        (self.data,) = found
        assert not self.data.error_code
        taken = bytes(self.data.records or b"")  # type: ignore[arg-type]  # decoded: one buffer
        if taken:
            self.offset += records
        return taken


class Tail:
    """A topic whose partition 0 of `t` is followed."""

    def __init__(self, handover: HandoverFixture) -> None:
        self.handover = handover
        self.fixture = handover.fixture
        self.run = handover.run
        self.end = 0

    def append(self, batch: bytes = BATCH, count: int = 1) -> bytes:
        """As the worker's loop does. The stored form."""
        (offset,) = self.fixture.harness.append("t", batch)
        assert offset == self.end
        self.end += count
        self.handover.worker.send_replies()
        return as_stored(batch, offset)

    async def consumer(self, version: int = NEWEST, **options: object) -> TailConsumer:
        """At the end."""
        client = await self.handover.connect()
        consumer = TailConsumer(client, version, **options)  # type: ignore[arg-type]
        consumer.offset = self.end
        return consumer

    async def take(self, consumer: TailConsumer) -> None:
        """Append a record, which the consumer takes."""
        expected = self.append()
        assert await consumer.receive(consumer.post()) == expected

    async def followed(self, version: int = NEWEST, **options: object) -> TailConsumer:
        """A consumer whose connection the worker has."""
        consumer = await self.consumer(version, **options)
        for _ in range(HANDOVER_AFTER + 2 + consumer.has_session):
            await self.take(consumer)
        await self.until_handed()
        return consumer

    async def until_handed(self) -> None:
        handover = self.handover
        await handover.until(lambda: handover.worker.count == handover.handover.count == 1)

    async def until_waiting(self) -> None:
        """Until a fetch waits at the worker."""

        def waits() -> bool:
            return any(fetch.correlation_id for _, fetch in self.handover.fetches.all())

        await self.handover.until(waits)

    def expire(self) -> None:
        """Let the time of the fetches that wait at the worker be over."""
        self.handover.worker.tick(monotonic() + LONG_MS)

    @property
    def is_handed(self) -> bool:
        return bool(self.handover.handover.count)


@pytest.fixture
def tail(tmp_path: Path) -> Iterator[Tail]:
    with handover_fixture(tmp_path) as fixture:
        yield Tail(fixture)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    ("version", "has_session"),
    [(version, False) for version in VERSIONS]
    + [(version, True) for version in VERSIONS if version >= SESSIONS_SINCE],
)
def test_the_responses_have_the_same_bytes(
    tail: Tail, version: int, has_session: bool, isolation_level: int
) -> None:
    async def scenario() -> None:
        options = {"has_session": has_session, "isolation_level": isolation_level, "wait_ms": 30}
        handed = await tail.followed(version, **options)
        other = await tail.consumer(version, **options)
        frames: dict[TailConsumer, list[bytes]] = {handed: [], other: []}
        if has_session:
            # Its session is to have been told as much.
            assert not await other.receive(other.post())
        for records in (1, 0, 0, 3, 1, 0):
            for _ in range(records):
                tail.append()
            for consumer, found in frames.items():
                consumer.client.writer.write(frame_of(consumer.request(), version, 77))
                frame = bytes(await consumer.client.frame())
                at = SESSION_ID_AT + (version >= FLEXIBLE_SINCE)
                if has_session:
                    assert frame[at : at + 4] == struct.pack(">i", consumer.session_id)
                found.append(frame[:at] + frame[at + 4 * has_session :])
                consumer.told_offset, consumer.offset = consumer.offset, consumer.offset + records
                consumer.epoch += has_session
        assert tail.is_handed
        assert frames[handed] == frames[other]

    tail.run(scenario())


@pytest.mark.parametrize("has_session", [False, True])
def test_a_fetch_that_waits_is_answered_by_the_next_record(tail: Tail, has_session: bool) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=has_session)
        for _ in range(3 * HANDOVER_AFTER):
            correlation_id = consumer.post()
            await tail.until_waiting()
            expected = tail.append()
            assert await consumer.receive(correlation_id) == expected
        assert tail.is_handed

    tail.run(scenario())


def test_a_request_that_comes_with_the_connection_is_answered_once(tail: Tail) -> None:
    """A client that sends two at a time: the connection changes hands between them."""

    async def scenario() -> None:
        consumer = await tail.consumer()
        for _ in range(3 * HANDOVER_AFTER):
            tail.append()
            for correlation_id in [consumer.post(), consumer.post()]:
                frame = await consumer.client.frame()
                assert struct.unpack_from(">i", frame) == (correlation_id,)
            consumer.offset += 1
        assert tail.handover.handover.handed_over_count
        await tail.take(consumer)

    tail.run(scenario())


def test_several_consumers_are_woken(tail: Tail) -> None:
    async def scenario() -> None:
        consumers = [await tail.followed()]
        for _ in range(3):
            consumer = await tail.consumer()
            for _ in range(HANDOVER_AFTER + 2):
                consumer.offset = tail.end
                await tail.take(consumer)
            consumers.append(consumer)
        await tail.handover.until(lambda: tail.handover.worker.count == len(consumers))
        for consumer in consumers:
            consumer.offset = tail.end
        posted = [consumer.post() for consumer in consumers]
        await tail.until_waiting()
        expected = tail.append()
        for consumer, correlation_id in zip(consumers, posted, strict=True):
            assert await consumer.receive(correlation_id) == expected

    tail.run(scenario())


def behind_the_end(consumer: TailConsumer) -> tuple[FetchRequest, int]:
    consumer.offset += 5
    return consumer.request(), ErrorCode.OFFSET_OUT_OF_RANGE


def of_an_old_epoch(consumer: TailConsumer) -> tuple[FetchRequest, int]:
    request = consumer.request()
    request.topics[0].partitions[0].current_leader_epoch = 5
    return request, ErrorCode.UNKNOWN_LEADER_EPOCH


def of_no_partition(consumer: TailConsumer) -> tuple[FetchRequest, int]:
    request = consumer.request()
    request.topics[0].partitions[0].partition = 7
    return request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("make", [behind_the_end, of_an_old_epoch, of_no_partition])
@pytest.mark.parametrize("has_session", [False, True])
def test_errors_are_those_of_the_router(
    tail: Tail, make: Callable[[TailConsumer], tuple[FetchRequest, int]], has_session: bool
) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=has_session)
        request, expected = make(consumer)
        answer = await consumer.client.ask(request, NEWEST, FetchResponse)
        codes = [data.error_code for data in answer.responses[0].partitions if not data.records]
        assert codes == [expected]
        assert not tail.is_handed

    tail.run(scenario())


def test_a_session_goes_on_at_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=True)
        for _ in range(5):
            await tail.take(consumer)
        await consumer.client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert not tail.is_handed
        # Nothing has changed: the partition is left out.
        consumer.wait_ms = 1
        assert await consumer.receive(consumer.post()) == b""
        assert await consumer.receive(consumer.post()) == b""
        await tail.take(consumer)
        consumer.epoch += 3
        wrong = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    tail.run(scenario())


def test_a_wrong_epoch_of_a_session_is_refused_by_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=True)
        consumer.epoch += 1
        wrong = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        consumer.epoch -= 1
        await tail.take(consumer)

    tail.run(scenario())


def test_a_session_that_is_gone_is_recalled(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=True)
        sessions = tail.fixture.harness.services.fetch_sessions._sessions
        del sessions[consumer.session_id]
        await tail.handover.until(lambda: not tail.is_handed)
        gone = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    tail.run(scenario())


def deny_reads(tail: Tail) -> None:
    tail.fixture.harness.deny(AclOperation.READ, ResourceType.TOPIC, "t")


def set_a_quota(tail: Tail) -> None:
    quota = ClientQuotaChanged((("client-id", "x"),), "consumer_byte_rate", 1e9)
    tail.fixture.harness.controller.write(quota)
    tail.fixture.harness.follow()


def begin_a_trace(tail: Tail) -> None:
    trace(tail.handover)


@pytest.mark.parametrize("change", [deny_reads, set_a_quota, begin_a_trace])
def test_a_fetch_that_waits_comes_back_when_something_changes(
    tail: Tail, change: Callable[[Tail], None]
) -> None:
    async def scenario() -> None:
        consumer = await tail.followed()
        correlation_id = consumer.post()
        await tail.until_waiting()
        change(tail)
        await tail.handover.until(lambda: not tail.is_handed)
        if change is deny_reads:
            answer = await consumer.client.receive(
                correlation_id, consumer.request(), NEWEST, FetchResponse
            )
            (data,) = answer.responses[0].partitions
            assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return
        purgatory = tail.fixture.harness.services.fetch_purgatory
        await tail.handover.until(lambda: purgatory.parked_count)
        expected = tail.append()
        assert await consumer.receive(correlation_id) == expected

    tail.run(scenario())


def test_the_rest_of_the_time_is_waited_at_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(wait_ms=500)
        loop = tail.fixture.loop
        began = loop.time()
        correlation_id = consumer.post()
        await tail.until_waiting()
        tail.handover.connection.handover.recall()  # type: ignore[union-attr]  # it has one
        assert await consumer.receive(correlation_id) == b""
        assert not tail.is_handed
        assert 0.48 < loop.time() - began < 1.5

    tail.run(scenario())


def test_a_replaced_leader_is_answered_like_always(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(FOLLOWERS_SINCE - 1)
        tail.fixture.harness.lead("t", epoch=7, leader=2)
        answer = await consumer.client.ask(consumer.request(), consumer.version, FetchResponse)
        (data,) = answer.responses[0].partitions
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    tail.run(scenario())


@pytest.mark.parametrize("has_session", [False, True])
def test_more_records_than_a_few_come_from_the_router(tail: Tail, has_session: bool) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(has_session=has_session)
        large = batch_of(1, size=RECORD_BYTES_MAX)
        for _ in range(2):
            expected = tail.append(large)
            assert await consumer.receive(consumer.post()) == expected
            assert not tail.is_handed
        # Many small ones together.
        expected = b"".join(tail.append(batch_of(1, size=RECORD_BYTES_MAX // 4)) for _ in range(5))
        assert await consumer.receive(consumer.post(), 5) == expected

    tail.run(scenario())


def test_a_fetch_that_takes_less_than_there_is_comes_from_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.consumer()
        consumer.partition_bytes_max = len(BATCH) + 10
        for _ in range(HANDOVER_AFTER + 2):
            await tail.take(consumer)
        await tail.until_handed()
        expected = [tail.append() for _ in range(4)]
        for each in expected:
            assert await consumer.receive(consumer.post()) == each
        assert tail.handover.handover.handed_over_count == 1

    tail.run(scenario())


def test_consumers_that_take_much_stay_with_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.consumer()
        for _ in range(2 * HANDOVER_AFTER):
            expected = tail.append(batch_of(1, size=FEW_BYTES_MAX))
            assert await consumer.receive(consumer.post()) == expected
        assert not tail.handover.handover.handed_over_count

    tail.run(scenario())


def several_partitions(request: FetchRequest) -> None:
    request.topics[0].partitions.append(
        FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
    )


def many_bytes(request: FetchRequest) -> None:
    request.min_bytes = 2


def a_long_wait(request: FetchRequest) -> None:
    request.max_wait_ms = WAIT_MS_MAX + 1


@pytest.mark.parametrize("change", [several_partitions, many_bytes, a_long_wait])
def test_other_fetches_stay_with_the_router(
    tail: Tail, change: Callable[[FetchRequest], None]
) -> None:
    async def scenario() -> None:
        consumer = await tail.consumer()
        for _ in range(2 * HANDOVER_AFTER):
            expected = tail.append()
            request = consumer.request()
            change(request)
            answer = await consumer.client.ask(request, NEWEST, FetchResponse)
            assert answer.responses[0].partitions[0].records == expected
            consumer.offset += 1
        assert not tail.handover.handover.handed_over_count

    tail.run(scenario())


def test_the_number_of_consumers_is_bounded(tail: Tail) -> None:
    async def scenario() -> None:
        consumers = [await tail.consumer() for _ in range(CONSUMERS_MAX + 3)]
        for _ in range(3 * HANDOVER_AFTER):
            expected = tail.append()
            for consumer in consumers:
                assert await consumer.receive(consumer.post()) == expected
        assert tail.handover.handover.count == CONSUMERS_MAX

    tail.run(scenario())


@pytest.mark.parametrize("has_session", [False, True])
def test_who_has_read_records_of_the_current_epoch_is_handed_over(
    tail: Tail, has_session: bool
) -> None:
    async def scenario() -> None:
        tail.fixture.harness.lead("t", epoch=3, leader=0)
        consumer = await tail.consumer(has_session=has_session)
        consumer.last_fetched_epoch = 3
        for _ in range(3 * HANDOVER_AFTER):
            expected = as_stored(BATCH, tail.end, 3)
            tail.append()
            assert await consumer.receive(consumer.post()) == expected
        assert tail.is_handed

    tail.run(scenario())


def test_who_has_read_records_of_an_earlier_epoch_stays_with_the_router(tail: Tail) -> None:
    async def scenario() -> None:
        tail.append()
        consumer = await tail.consumer()
        consumer.last_fetched_epoch = 0
        tail.fixture.harness.lead("t", epoch=3, leader=0)
        expected = as_stored(BATCH, tail.end, 3)
        tail.append()
        for _ in range(2 * HANDOVER_AFTER):
            assert await consumer.receive(consumer.post()) == expected
            consumer.offset -= 1
        assert not tail.handover.handover.handed_over_count

    tail.run(scenario())


def test_aborted_transactions_are_told_by_the_router(tail: Tail) -> None:
    harness = tail.fixture.harness

    async def scenario() -> None:
        consumer = await tail.followed(isolation_level=1)
        other = await tail.consumer(isolation_level=1)
        transactional = batch_of(
            1, producer_id=9, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
        )
        tail.append(transactional)
        # It is not stable: the consumer waits.
        correlation_id = consumer.post()
        await tail.until_waiting()
        router = RouterState()
        place = harness.place("t", 0)
        marker = WriteMarker(1, *place, 9, 0, 0, is_commit=False, transaction_version=1)
        harness.turns.run([(router, marker)], NOW_MS)
        tail.handover.worker.send_replies()
        found = await consumer.receive(correlation_id, 2)
        assert not tail.is_handed
        assert [each.producer_id for each in consumer.data.aborted_transactions or ()] == [9]
        assert found == await other.receive(other.post(), 2)
        tail.end += 1
        await tail.take(consumer)

    tail.run(scenario())


def test_what_is_not_stable_is_not_sent(tail: Tail) -> None:
    """Behind an open transaction, to one who reads what is committed; to others it is."""

    async def scenario() -> None:
        committed = await tail.followed(isolation_level=1)
        correlation_id = committed.post()
        await tail.until_waiting()
        expected = tail.append(
            batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
        )
        other = await tail.consumer()
        other.offset -= 1
        assert await other.receive(other.post()) == expected
        tail.expire()
        assert await committed.receive(correlation_id) == b""
        assert committed.data.high_watermark == tail.end
        assert committed.data.last_stable_offset == tail.end - 1

    tail.run(scenario())


def test_who_finds_nothing_for_a_while_goes_back_and_is_idle(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed(wait_ms=500)
        tail.handover.worker.tick(monotonic())
        correlation_id = consumer.post()
        await tail.until_waiting()
        tail.handover.worker.tick(monotonic() + 2 * IDLE_S)
        assert await consumer.receive(correlation_id) == b""
        await tail.handover.until(lambda: not tail.is_handed)
        assert await consumer.receive(consumer.post()) == b""
        assert isinstance(tail.handover.connection.remembered, IdleFetch)
        await tail.take(consumer)

    tail.run(scenario())


def test_a_client_that_leaves_while_its_fetch_waits_is_forgotten(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed()
        consumer.post()
        await tail.until_waiting()
        consumer.client.writer.close()
        await tail.handover.until(lambda: not tail.fixture.wire.connections)
        assert not tail.handover.worker.count
        assert not tail.fixture.harness.turns.awaited

    tail.run(scenario())


def test_a_busy_worker_has_no_time_for_consumers(tail: Tail) -> None:
    """It goes back with the request that waits, and stays longer each time."""

    async def scenario() -> None:
        worker, handover = tail.handover.worker, tail.handover
        consumer = await tail.consumer()
        asked = [0]
        for _ in range(3):
            while not tail.is_handed:
                await tail.take(consumer)
                asked[-1] += 1
            for _ in range(SERVED_MIN):
                await tail.take(consumer)
            correlation_id = consumer.post()
            await tail.until_waiting()
            now_s = monotonic() + 1
            worker.tick(now_s)
            handover.used_s += 0.8 * WINDOW_S
            worker.tick(now_s + WINDOW_S)
            assert tail.is_handed
            handover.used_s += 0.9 * WINDOW_S
            worker.tick(now_s + 2 * WINDOW_S)
            await handover.until(lambda: not tail.is_handed)
            expected = tail.append()
            assert await consumer.receive(correlation_id) == expected
            asked.append(0)
        assert asked[0] < asked[1] / 2 < asked[2] / 4

    tail.run(scenario())


def test_while_records_come_requests_are_not_watched(tail: Tail) -> None:
    """But found when the next record comes, or after a moment."""

    async def scenario() -> None:
        consumer = await tail.followed()
        (fetch,) = [each for _, each in tail.handover.fetches.all()]
        for is_late in (False, True):
            await tail.take(consumer)
            assert fetch.watch_s < monotonic() + 1
            correlation_id = consumer.post()
            await consumer.client.writer.drain()
            await tail.handover.until(
                lambda: is_readable(tail.handover.connection.descriptor() or 0)
            )
            if is_late:
                assert not is_readable(tail.handover.worker.fileno())
                tail.handover.worker.serve_due(fetch.watch_s)
                assert is_readable(tail.handover.worker.fileno())
            expected = tail.append()
            assert await consumer.receive(correlation_id) == expected
        assert tail.is_handed

    tail.run(scenario())


def test_fetches_are_counted_wherever_they_are_answered(tail: Tail) -> None:
    async def scenario() -> None:
        consumer = await tail.followed()
        for _ in range(3 * HANDOVER_AFTER):
            await tail.take(consumer)
        assert tail.is_handed
        tail.handover.worker.tick(monotonic() + 2 * IDLE_S)
        counts, services = tail.fixture.dispatcher.request_counts, tail.fixture.harness.services
        await tail.handover.until(lambda: counts[ApiKey.FETCH, NEWEST] == tail.end)
        assert tail.fixture.wire.counters.requests == tail.end
        ((api_key, total),) = tail.fixture.wire.request_times.totals()
        assert (api_key, total.count) == (ApiKey.FETCH, tail.end // 16)
        sent = services.fetch_activity.sent[topic_id(1)]
        assert sent == (tail.end * len(BATCH), tail.end)
        (reader,) = services.fetch_activity.of_topic("t", topic_id(1), services.now_ms())[0]
        assert reader.offset == tail.end - 1

    tail.run(scenario())

"""Consumers that catch up and whose fetches are not decoded: they notice nothing.

That a fetch was answered so is seen from what is remembered of the connection: it is forgotten as
soon as a request has to be decoded.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek.node.bus.messages import WriteMarker
from odradek.node.router.fetch_routes import FEW_BYTES_MAX, HANDOVER_AFTER
from odradek.node.router.idle_fetches import IdleFetch
from odradek.node.router.large_fetches import REPEATED_AFTER, LargeFetch
from odradek.node.router.sessionless_fetches import SessionlessFetch
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.records import TRANSACTIONAL
from tests.node.router.test_connection_handover import handover_fixture
from tests.node.router.test_fetch_routes import (
    FLEXIBLE_SINCE,
    FOLLOWERS_SINCE,
    NEWEST,
    SESSION_ID_AT,
    SESSIONS_SINCE,
    VERSIONS,
    Tail,
    TailConsumer,
    begin_a_trace,
    deny_reads,
    of_an_old_epoch,
    of_no_partition,
    set_a_quota,
)
from tests.support.controller_harness import topic_id
from tests.support.stores import NOW_MS, as_stored, batch_of
from tests.support.wire import frame_of

LARGE = batch_of(1, size=FEW_BYTES_MAX)
"""Too large for two of them in a response."""
SMALL = batch_of(1)
AFTER = REPEATED_AFTER + 3
"""Fetches until one is answered without being decoded. With a session one more: it is created."""


class Log(Tail):
    """A log that consumers read from its start."""

    def fill(self, count: int, batch: bytes = LARGE) -> list[bytes]:
        """The batches as they are stored."""
        return [self.append(batch) for _ in range(count)]

    async def reader(self, version: int = NEWEST, **options: object) -> TailConsumer:
        """A consumer at the log's start that gets one large batch at a time."""
        consumer = await self.consumer(version, **options)
        consumer.offset = 0
        consumer.partition_bytes_max = len(LARGE) + len(SMALL)
        return consumer

    async def catching_up(self, version: int = NEWEST, **options: object) -> TailConsumer:
        """One whose last fetch was answered without being decoded, with more to read."""
        expected = self.fill(AFTER + 10)
        consumer = await self.reader(version, **options)
        for at in range(AFTER + consumer.has_session):
            assert await consumer.receive(consumer.post()) == expected[at]
        assert self.is_repeated
        return consumer

    @property
    def remembered(self) -> object:
        """Of the first connection."""
        return next(iter(self.fixture.wire.connections.values())).remembered

    @property
    def is_repeated(self) -> bool:
        """Whether the last fetch of the first connection was not decoded."""
        return isinstance(self.remembered, LargeFetch | SessionlessFetch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with handover_fixture(tmp_path) as fixture:
        yield Log(fixture)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    ("version", "has_session"),
    [(version, False) for version in VERSIONS]
    + [(version, True) for version in VERSIONS if version >= SESSIONS_SINCE],
)
def test_the_responses_have_the_same_bytes(
    log: Log, version: int, has_session: bool, isolation_level: int
) -> None:
    async def scenario() -> None:
        options = {"has_session": has_session, "isolation_level": isolation_level}
        repeating = await log.catching_up(version, **options)
        other = await log.reader(version, **options)
        if has_session:
            assert await other.receive(other.post())
        other.offset = repeating.offset
        for count in range(4):
            frames = []
            for consumer in (repeating, other):
                # A request that differs from the one before it is decoded.
                consumer.wait_ms += count if consumer is other else 0
                consumer.client.writer.write(frame_of(consumer.request(), version, 77 + count))
                frame = bytes(await consumer.client.frame())
                at = SESSION_ID_AT + (version >= FLEXIBLE_SINCE)
                if has_session:
                    assert frame[at : at + 4] == struct.pack(">i", consumer.session_id)
                frames.append(frame[:at] + frame[at + 4 * has_session :])
                consumer.offset += 1
                consumer.epoch += has_session
            assert frames[0] == frames[1]
            assert log.is_repeated

    log.run(scenario())


@pytest.mark.parametrize("has_session", [False, True])
def test_several_requests_at_once_are_answered_in_order(log: Log, has_session: bool) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=has_session)
        posted = []
        for _ in range(5):
            posted.append((consumer.offset, consumer.post()))
            consumer.offset += 1
            consumer.epoch += has_session
        for offset, correlation_id in posted:
            answer = await consumer.client.receive(
                correlation_id, consumer.request(), NEWEST, FetchResponse
            )
            (data,) = answer.responses[0].partitions
            assert bytes(data.records or b"") == as_stored(LARGE, offset)  # type: ignore[arg-type]
        assert log.is_repeated

    log.run(scenario())


def test_a_read_from_anywhere_is_answered(log: Log) -> None:
    """Also where a segment ends, and in the middle of a batch."""

    async def scenario() -> None:
        consumer = await log.catching_up()
        stored = log.append(batch_of(10, size=FEW_BYTES_MAX // 8), 10)
        consumer.partition_bytes_max = len(stored)
        for _ in range(AFTER):
            consumer.offset = log.end - 5
            assert await consumer.receive(consumer.post()) == stored
        assert log.is_repeated

    log.run(scenario())


def behind_the_end(consumer: TailConsumer) -> tuple[FetchRequest, int]:
    consumer.offset += 1_000
    return consumer.request(), ErrorCode.OFFSET_OUT_OF_RANGE


def before_the_start(consumer: TailConsumer) -> tuple[FetchRequest, int]:
    consumer.offset = -1
    return consumer.request(), ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    "make", [behind_the_end, before_the_start, of_an_old_epoch, of_no_partition]
)
@pytest.mark.parametrize("has_session", [False, True])
def test_errors_are_those_of_all_fetches(
    log: Log, make: Callable[[TailConsumer], tuple[FetchRequest, int]], has_session: bool
) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=has_session)
        request, expected = make(consumer)
        answer = await consumer.client.ask(request, NEWEST, FetchResponse)
        codes = [data.error_code for data in answer.responses[0].partitions if not data.records]
        assert codes == [expected]
        assert not log.is_repeated

    log.run(scenario())


def test_a_wrong_epoch_of_a_session_is_refused_and_the_right_one_goes_on(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=True)
        consumer.epoch += 1
        wrong = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        consumer.epoch -= 1
        offset = consumer.offset
        assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)

    log.run(scenario())


def test_a_session_is_told_what_it_does_not_know(log: Log) -> None:
    """And nothing of a partition that is as the last response has said."""

    async def scenario() -> None:
        consumer = await log.catching_up(has_session=True)
        offset = consumer.offset
        assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
        assert log.is_repeated
        # The same again: what has not changed is not in the request.
        request = consumer.request()
        request.topics = []
        answer = await consumer.client.ask(request, NEWEST, FetchResponse)
        (data,) = answer.responses[0].partitions
        assert bytes(data.records or b"") == as_stored(LARGE, offset)  # type: ignore[arg-type]
        consumer.epoch += 1
        for at in range(AFTER):
            offset = consumer.offset = log.end - 2 + (AFTER + at) % 2
            assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
        assert log.is_repeated
        consumer.wait_ms = 1
        answer = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert answer.responses == []

    log.run(scenario())


def test_a_segment_is_held_until_the_client_has_read_it(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up()
        consumer.offset = 0
        connection = next(iter(log.fixture.wire.connections.values()))
        posted = 0
        while not connection._holds:
            consumer.post()
            posted += 1
            await consumer.client.writer.drain()
            await asyncio.sleep(0)
        for _ in range(posted):
            frame = await consumer.client.frame()
            assert as_stored(LARGE, 0) in bytes(frame)
        await log.handover.until(lambda: not connection._holds)

    log.run(scenario())


def test_a_session_that_is_gone_is_not_found(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=True)
        del log.fixture.harness.services.fetch_sessions._sessions[consumer.session_id]
        gone = await consumer.client.ask(consumer.request(), NEWEST, FetchResponse)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    log.run(scenario())


def test_a_session_that_has_got_another_partition_answers_of_both(log: Log) -> None:
    """By another connection: a session belongs to none."""

    async def scenario() -> None:
        consumer = await log.catching_up(has_session=True)
        other = await log.handover.connect()
        request = consumer.request()
        request.topics[0].partitions = [
            FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
        ]
        await other.ask(request, NEWEST, FetchResponse)
        consumer.epoch += 1
        log.fixture.harness.append("t", SMALL, partition=1)
        request = consumer.request()
        answer = await consumer.client.ask(request, NEWEST, FetchResponse)
        assert {data.partition_index for data in answer.responses[0].partitions} == {0, 1}

    log.run(scenario())


def lead_elsewhere(log: Tail) -> None:
    log.fixture.harness.lead("t", epoch=7, leader=2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (deny_reads, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (lead_elsewhere, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_change_is_told_with_the_next_fetch(
    log: Log, change: Callable[[Tail], None], expected: ErrorCode
) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(FOLLOWERS_SINCE - 1)
        change(log)
        answer = await consumer.client.ask(consumer.request(), consumer.version, FetchResponse)
        (data,) = answer.responses[0].partitions
        assert data.error_code == expected

    log.run(scenario())


@pytest.mark.parametrize("change", [set_a_quota, begin_a_trace])
def test_what_is_counted_or_traced_is_decoded(log: Log, change: Callable[[Tail], None]) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up()
        kept = log.remembered
        change(log)
        for _ in range(2):
            offset = consumer.offset
            assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
        services = log.fixture.harness.services
        assert services.client_quotas.is_active or services.tracer.is_active
        if services.client_quotas.is_active:
            assert log.remembered is not kept

    log.run(scenario())


def test_other_requests_between_fetches_do_not_matter(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=True)
        kept = log.remembered
        for _ in range(3):
            await consumer.client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            offset = consumer.offset
            assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
            assert log.remembered is kept

    log.run(scenario())


@pytest.mark.parametrize("has_session", [False, True])
def test_who_has_caught_up_waits_and_is_handed_over_later(log: Log, has_session: bool) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(has_session=has_session)
        while consumer.offset < log.end:
            offset = consumer.offset
            assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
        correlation_id = consumer.post()
        purgatory = log.fixture.harness.services.fetch_purgatory
        await log.handover.until(lambda: purgatory.parked_count)
        expected = log.append(LARGE)
        assert await consumer.receive(correlation_id) == expected
        for _ in range(HANDOVER_AFTER + 3):
            await log.take(consumer)
        await log.until_handed()
        await log.take(consumer)

    log.run(scenario())


def test_who_finds_nothing_is_idle(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up()
        consumer.offset = log.end
        consumer.wait_ms = 1
        for _ in range(2):
            assert await consumer.receive(consumer.post()) == b""
        assert isinstance(log.remembered, IdleFetch)

    log.run(scenario())


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_small_rest_is_the_last_that_is_repeated(log: Log, isolation_level: int) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up(isolation_level=isolation_level)
        expected = log.append(SMALL)
        consumer.offset = log.end - 1
        assert await consumer.receive(consumer.post()) == expected
        assert not log.is_repeated

    log.run(scenario())


def test_aborted_transactions_are_told(log: Log) -> None:
    harness = log.fixture.harness

    async def scenario() -> None:
        consumer = await log.catching_up(isolation_level=1)
        begins_at = log.end
        transactional = batch_of(
            1,
            size=FEW_BYTES_MAX,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        stored = log.append(transactional)
        consumer.offset = begins_at - 1
        assert await consumer.receive(consumer.post()) == as_stored(LARGE, begins_at - 1)
        assert log.is_repeated
        # It is open: nothing of it is sent.
        correlation_id = consumer.post()
        purgatory = harness.services.fetch_purgatory
        await log.handover.until(lambda: purgatory.parked_count)
        place = harness.place("t", 0)
        marker = WriteMarker(1, *place, 9, 0, 0, is_commit=False, transaction_version=1)
        harness.turns.run([(RouterState(), marker)], NOW_MS)
        log.handover.worker.send_replies()
        log.end += 1
        found = await consumer.receive(correlation_id, 2)
        assert found.startswith(stored)
        log.fill(AFTER)
        for _ in range(AFTER):
            offset = consumer.offset
            assert await consumer.receive(consumer.post()) == as_stored(LARGE, offset)
        assert log.is_repeated
        # One that is read again while its fetches are not decoded.
        consumer.offset = begins_at
        assert await consumer.receive(consumer.post(), 2) == found
        assert [each.producer_id for each in consumer.data.aborted_transactions or ()] == [9]

    log.run(scenario())


def test_fetches_are_counted_and_seen_by_explain(log: Log) -> None:
    async def scenario() -> None:
        await log.catching_up()
        counts, services = log.fixture.dispatcher.request_counts, log.fixture.harness.services
        assert counts[ApiKey.FETCH, NEWEST] == AFTER
        assert services.fetch_activity.sent[topic_id(1)] == (AFTER * len(LARGE), AFTER)
        (reader,) = services.fetch_activity.of_topic("t", topic_id(1), services.now_ms())[0]
        assert reader.offset == AFTER - 1

    log.run(scenario())


def test_a_sample_of_the_fetches_is_measured(log: Log) -> None:
    async def scenario() -> None:
        consumer = await log.catching_up()
        for _ in range(16):
            consumer.offset = 0
            assert await consumer.receive(consumer.post())
        assert log.is_repeated
        ((api_key, total),) = log.fixture.wire.request_times.totals()
        assert (api_key, total.count) == (ApiKey.FETCH, (AFTER + 16) // 16)

    log.run(scenario())

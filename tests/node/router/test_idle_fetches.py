"""Fetches that found nothing and are asked again are answered as if each was decoded."""

import asyncio
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged, TopicDeleted
from odradek.node.router import dispatch
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.idle_fetches import FRAME_BYTES_MAX, IdleFetch
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest
from odradek.protocol.records import TRANSACTIONAL
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient, DispatchFixture, dispatch_fixture
from tests.support.stores import batch_of
from tests.support.wire import frame_of

VERSIONS = range(4, APIS[ApiKey.FETCH].max_version + 1)
V4, NEWEST = VERSIONS[0], VERSIONS[-1]
FOLLOWERS_SINCE = 11
"""The first version that followers answer."""
PROBE = 99
FIRST = 7
SOON_MS = 20


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[DispatchFixture]:
    with dispatch_fixture(tmp_path) as fixture:
        for partition in (0, 1):
            fixture.harness.append("t", batch_of(FIRST), partition=partition)
        yield fixture


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """The Fetch requests that were decoded."""
    handle = dispatch.HANDLERS[ApiKey.FETCH]
    requests: list[FetchRequest] = []

    async def counting(
        request: FetchRequest, context: RequestContext, services: Services
    ) -> object:
        requests.append(request)
        return await handle(request, context, services)

    monkeypatch.setitem(dispatch.HANDLERS, ApiKey.FETCH, counting)
    return requests


def fetch(
    *partitions: int, offset: int = FIRST, wait_ms: int = SOON_MS, min_bytes: int = 1
) -> FetchRequest:
    """A consumer at the end of these partitions of `t`, without a session."""
    asked = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in partitions or (0,)
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", topic_id=topic_id(1), partitions=asked)],
    )


async def ask(client: DispatchClient, request: FetchRequest, version: int) -> list[PartitionData]:
    response = await client.ask(request, version, FetchResponse)
    assert not response.error_code
    return [data for topic in response.responses for data in topic.partitions]


async def answers_to(client: DispatchClient, frame: bytes) -> list[bytes]:
    """The responses to a frame and to a request behind it, or what comes before the end."""
    client.writer.write(frame + frame_of(ApiVersionsRequest(), 0, PROBE))
    found: list[bytes] = []
    while not found or found[-1][:4] != struct.pack(">i", PROBE):
        try:
            found.append(bytes(await client.frame()))
        except (EOFError, ConnectionResetError):
            break
    return found


async def until_parked(fixture: DispatchFixture) -> None:
    for _ in range(100_000):
        if fixture.harness.services.fetch_purgatory.parked_count:
            return
        await asyncio.sleep(0)
    raise AssertionError("no fetch waits")


def remembers(fixture: DispatchFixture) -> bool:
    (connection,) = fixture.wire.connections.values()
    return isinstance(connection.remembered, IdleFetch)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_has_the_same_bytes(
    fixture: DispatchFixture, decoded: list[FetchRequest], version: int
) -> None:
    frame = frame_of(fetch(0, 1), version, 7)

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        first = await answers_to(client, frame)
        assert len(first) == 2
        for _ in range(2):
            assert await answers_to(client, frame) == first
        assert len(decoded) == 1
        assert await answers_to(other, frame) == first
        assert len(decoded) == 2

    fixture.run(scenario())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_waits_without_being_decoded_is_woken_by_a_record(
    fixture: DispatchFixture, decoded: list[FetchRequest], version: int
) -> None:
    asked = fetch(0, 1, wait_ms=300)

    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, asked, version)
        correlation_id = client.post(asked, version)
        await until_parked(fixture)
        assert len(decoded) == 1
        fixture.harness.append("t", batch_of(1), partition=1)
        answer = await client.receive(correlation_id, asked, version, FetchResponse)
        assert len(decoded) == 2
        partitions = answer.responses[0].partitions
        assert [data.partition_index for data in partitions if data.records] == [1]
        assert 0 < decoded[1].max_wait_ms <= 300

    fixture.run(scenario())


def test_too_few_bytes_end_the_wait_at_its_time(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    """The rest of the time is waited, not all of it once more."""
    asked = fetch(wait_ms=200, min_bytes=1_000_000)

    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, asked, V4)
        fixture.harness.now_ms += 50
        correlation_id = client.post(asked, V4)
        await until_parked(fixture)
        fixture.harness.now_ms += 150
        fixture.harness.append("t", batch_of(1))
        answer = await client.receive(correlation_id, asked, V4, FetchResponse)
        assert answer.responses[0].partitions[0].records
        assert decoded[1].max_wait_ms == 50

    fixture.run(scenario())


def with_session(request: FetchRequest) -> None:
    request.session_epoch = 0


def as_replica(request: FetchRequest) -> None:
    request.replica_id = 1


def without_waiting(request: FetchRequest) -> None:
    request.max_wait_ms = 0


def without_bytes(request: FetchRequest) -> None:
    request.min_bytes = 0


def with_rack(request: FetchRequest) -> None:
    request.rack_id = "a"


def with_epoch(request: FetchRequest) -> None:
    request.topics[0].partitions[0].last_fetched_epoch = 0


def of_an_unknown_partition(request: FetchRequest) -> None:
    request.topics[0].partitions[0].partition = 9


def behind_the_end(request: FetchRequest) -> None:
    request.topics[0].partitions[0].fetch_offset = FIRST + 1


def with_records(request: FetchRequest) -> None:
    request.topics[0].partitions[0].fetch_offset = 0


def of_nothing(request: FetchRequest) -> None:
    request.topics = []


@pytest.mark.parametrize(
    "change",
    [
        with_session,
        as_replica,
        without_waiting,
        without_bytes,
        with_rack,
        with_epoch,
        of_an_unknown_partition,
        behind_the_end,
        with_records,
        of_nothing,
    ],
)
def test_what_may_have_another_answer_is_not_remembered(
    fixture: DispatchFixture, decoded: list[FetchRequest], change: Callable[[FetchRequest], None]
) -> None:
    asked = fetch()
    change(asked)
    version = 14 if asked.replica_id >= 0 else NEWEST

    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            await client.ask(asked, version, FetchResponse)
        assert not remembers(fixture)

    fixture.run(scenario())
    assert len(decoded) == 2


def test_a_long_request_is_not_remembered(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    asked = fetch()
    asked.rack_id = ""
    asked.topics[0].partitions *= FRAME_BYTES_MAX // 16

    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            await client.ask(asked, V4, FetchResponse)
        assert not remembers(fixture)

    fixture.run(scenario())


class SessionConsumer:
    """A consumer with a fetch session, at the end of partition 0 of `t`."""

    def __init__(self, client: DispatchClient, version: int, wait_ms: int = 1) -> None:
        self.client = client
        self.version = version
        self.wait_ms = wait_ms
        self.session_id = self.epoch = 0

    async def open(self) -> None:
        request = fetch(wait_ms=1)
        request.session_epoch = 0
        answer = await self.client.ask(request, self.version, FetchResponse)
        self.session_id, self.epoch = answer.session_id, 1
        assert self.session_id

    def next(self) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=self.wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )

    async def poll(self) -> list[PartitionData]:
        answer = await self.client.ask(self.next(), self.version, FetchResponse)
        assert (answer.error_code, answer.session_id) == (0, self.session_id)
        self.epoch += 1
        return [data for topic in answer.responses for data in topic.partitions]


SESSION_VERSIONS = [7, 11, 12, 13, 15, NEWEST]


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_with_a_session_the_response_has_the_same_bytes(
    fixture: DispatchFixture, decoded: list[FetchRequest], version: int
) -> None:
    async def scenario() -> None:
        consumer = SessionConsumer(await fixture.connect(), version)
        await consumer.open()
        first = await answers_to(consumer.client, frame_of(consumer.next(), version, 7))
        assert len(first) == 2
        for _ in range(3):
            consumer.epoch += 1
            assert await answers_to(consumer.client, frame_of(consumer.next(), version, 7)) == first
        assert len(decoded) == 2

    fixture.run(scenario())


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_with_a_session_records_are_found_and_its_epochs_go_on(
    fixture: DispatchFixture, decoded: list[FetchRequest], version: int
) -> None:
    async def scenario() -> None:
        consumer = SessionConsumer(await fixture.connect(), version)
        await consumer.open()
        for _ in range(3):
            assert not await consumer.poll()
        assert len(decoded) == 2
        fixture.harness.append("t", batch_of(1))
        (data,) = await consumer.poll()
        assert data.records
        (data,) = await consumer.poll()  # It has not moved.
        assert data.records
        assert len(decoded) == 4

        other = SessionConsumer(await fixture.connect(), version, wait_ms=150)
        request = fetch(offset=FIRST + 1, wait_ms=1)
        request.session_epoch = 0
        answer = await other.client.ask(request, version, FetchResponse)
        other.session_id, other.epoch = answer.session_id, 1
        for _ in range(3):
            assert not await other.poll()
        asked = other.next()
        correlation_id = other.client.post(asked, version)
        await until_parked(fixture)
        fixture.harness.append("t", batch_of(1))
        woken = await other.client.receive(correlation_id, asked, version, FetchResponse)
        assert woken.responses[0].partitions[0].records
        assert 0 < decoded[-1].max_wait_ms <= 150
        other.epoch += 1
        assert (await other.poll())[0].records

    fixture.run(scenario())


def test_another_epoch_or_a_session_that_is_gone_is_an_error(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client, elsewhere = await fixture.connect(), await fixture.connect()
        consumer = SessionConsumer(client, NEWEST)
        await consumer.open()
        for _ in range(3):
            await consumer.poll()
        for epoch in (consumer.epoch - 1, consumer.epoch + 1):
            request = consumer.next()
            request.session_epoch = epoch
            answer = await client.ask(request, NEWEST, FetchResponse)
            assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert not await consumer.poll()
        # Another fetch of the session advances it.
        request = consumer.next()
        await elsewhere.ask(request, NEWEST, FetchResponse)
        answer = await client.ask(request, NEWEST, FetchResponse)
        assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        consumer.epoch += 1
        for _ in range(2):
            await consumer.poll()
        request = consumer.next()
        request.session_epoch = -1
        await elsewhere.ask(request, NEWEST, FetchResponse)
        answer = await client.ask(consumer.next(), NEWEST, FetchResponse)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    fixture.run(scenario())


def test_a_session_that_another_connection_advances_is_not_advanced_twice(
    fixture: DispatchFixture,
) -> None:
    async def scenario() -> None:
        client, elsewhere = await fixture.connect(), await fixture.connect()
        consumer = SessionConsumer(client, NEWEST, wait_ms=150)
        await consumer.open()
        await consumer.poll()
        request = consumer.next()
        correlation_id = client.post(request, NEWEST)
        await until_parked(fixture)
        same = consumer.next()
        same.max_wait_ms = 1
        await elsewhere.ask(same, NEWEST, FetchResponse)
        await client.receive(correlation_id, request, NEWEST, FetchResponse)
        consumer.epoch += 1
        assert not await consumer.poll()

    fixture.run(scenario())


def test_a_consumer_before_the_end_of_its_session_is_not_remembered(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    """It waits for a transaction, and its records may become stable without a new high
    watermark."""
    transactional = batch_of(
        1, producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    fixture.harness.append("t", transactional)

    async def scenario() -> None:
        client = await fixture.connect()
        request = fetch(wait_ms=1)
        request.session_epoch, request.isolation_level = 0, 1
        answer = await client.ask(request, NEWEST, FetchResponse)
        asked = FetchRequest(
            max_wait_ms=1,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            session_id=answer.session_id,
        )
        for epoch in (1, 2):
            asked.session_epoch = epoch
            assert not (await client.ask(asked, NEWEST, FetchResponse)).responses
            assert not remembers(fixture)

    fixture.run(scenario())
    assert len(decoded) == 3


def delete_topic(fixture: DispatchFixture) -> None:
    fixture.harness.controller.write(TopicDeleted(topic_id(1)))
    fixture.harness.follow()


def lose_leadership(fixture: DispatchFixture) -> None:
    fixture.harness.lead("t", epoch=7, leader=2)


def deny_reads(fixture: DispatchFixture) -> None:
    fixture.harness.deny(AclOperation.READ, ResourceType.TOPIC, "t")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lose_leadership, {ErrorCode.NOT_LEADER_OR_FOLLOWER}),
        (deny_reads, {ErrorCode.TOPIC_AUTHORIZATION_FAILED}),
        (delete_topic, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}),
    ],
)
def test_it_ends_when_what_it_was_made_of_changes(
    fixture: DispatchFixture,
    version: int,
    change: Callable[[DispatchFixture], None],
    codes: set[ErrorCode],
) -> None:
    if change is lose_leadership and version >= FOLLOWERS_SINCE:
        codes = {ErrorCode.NONE}

    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            (data,) = await ask(client, fetch(), version)
            assert not data.error_code
        change(fixture)
        for _ in range(2):
            (data,) = await ask(client, fetch(), version)
            assert data.error_code in codes

    fixture.run(scenario())


def test_another_principal_is_authorized_anew(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, fetch(), V4)
        (connection,) = fixture.wire.connections.values()
        connection.peer_principal = "User:other"
        await ask(client, fetch(), V4)

    fixture.run(scenario())
    assert len(decoded) == 2


def test_a_record_between_two_requests_is_found(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        assert not (await ask(client, fetch(), V4))[0].records
        fixture.harness.append("t", batch_of(1))
        assert (await ask(client, fetch(), V4))[0].records
        assert not (await ask(client, fetch(offset=FIRST + 1), V4))[0].records

    fixture.run(scenario())
    assert len(decoded) == 3


def test_quotas_count_it_and_traces_have_it(
    fixture: DispatchFixture, decoded: list[FetchRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, fetch(), V4)
        tracer = fixture.harness.services.tracer
        session = tracer.renew(b"s" * 16, "User:ANONYMOUS", TraceFilter(), 60_000)
        await ask(client, fetch(), V4)
        assert len(session.take()[0]) == 1
        tracer.end(b"s" * 16)
        await ask(client, fetch(), V4)
        entity = (("user", None),)
        fixture.harness.controller.write(ClientQuotaChanged(entity, "consumer_byte_rate", 1e9))
        fixture.harness.follow()
        await ask(client, fetch(), V4)

    fixture.run(scenario())
    assert len(decoded) == 3


def test_repeated_requests_are_counted_measured_and_seen_as_activity(
    fixture: DispatchFixture,
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(17):
            await ask(client, fetch(wait_ms=1), V4)
        fixture.harness.now_ms += 1_000
        await ask(client, fetch(wait_ms=1), V4)
        activity = fixture.harness.services.fetch_activity
        now_ms = fixture.harness.now_ms + 5
        (reader,) = activity.of_topic("t", topic_id(1), now_ms)[0]
        assert reader.fetch_idle_ms == 5

    fixture.run(scenario())
    assert fixture.dispatcher.request_counts[ApiKey.FETCH, V4] == 18
    counts = {api_key: each.count for api_key, each in fixture.wire.request_times.totals()}
    assert counts == {ApiKey.FETCH: 1}


def test_a_closed_connection_leaves_nothing_behind(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        asked = fetch(wait_ms=300)
        await ask(client, asked, V4)
        client.post(asked, V4)
        await until_parked(fixture)
        (connection,) = fixture.wire.connections.values()
        connection.abort()
        purgatory = fixture.harness.services.fetch_purgatory
        purgatory.abandon(connection.id)
        assert not purgatory.parked_count

    fixture.run(scenario())


@pytest.mark.parametrize("version", [V4, 11, NEWEST])
@pytest.mark.parametrize("seed", range(4))
def test_altered_requests_have_the_same_answer(
    fixture: DispatchFixture, version: int, seed: int
) -> None:
    """Whatever a byte is changed to: the same response, or the same end of the connection."""
    dice = random.Random(seed)
    frame = frame_of(fetch(wait_ms=1), version, 3)
    waits_at = frame.index(struct.pack(">ii", 1, 1))

    async def scenario() -> None:
        for _ in range(40):
            content = bytearray(frame[4:])
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            # It may neither be another API, nor wait for long, nor begin a session.
            content[waits_at - 4 : waits_at] = frame[waits_at : waits_at + 4]
            if content[:2] != frame[4:6]:
                continue
            sent = struct.pack(">i", len(content)) + content
            repeated, plain = await fixture.connect(), await fixture.connect()
            assert len(await answers_to(repeated, frame)) == 2
            first = await answers_to(repeated, bytes(sent))
            assert first == await answers_to(plain, bytes(sent)), sent.hex()
            repeated.writer.close()
            plain.writer.close()

    fixture.run(scenario())

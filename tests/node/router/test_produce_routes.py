"""Produce requests that take the route of an earlier one are answered as if each was decoded."""

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged, TopicDeleted
from odradek.node.router import dispatch
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.produce_routes import PREFIX_BYTES_MAX, ROUTES_MAX, ProduceRoutes
from odradek.node.router.tracing.trace_filter import TraceFilter
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient, DispatchFixture, dispatch_fixture
from tests.support.group_harness import GroupHarness
from tests.support.stores import NOW_MS, batch_of
from tests.support.transaction_dialogue import TransactionDialogue
from tests.support.wire import frame_of

VERSIONS = range(3, APIS[ApiKey.PRODUCE].max_version + 1)
V7, FLEXIBLE = 7, 9
PROBE = 99
FIRST = 777
OTHER = 2


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[DispatchFixture]:
    with dispatch_fixture(tmp_path) as fixture:
        # So that offsets are numbers that nothing else in a response has.
        for partition in (0, 1):
            fixture.harness.append("t", batch_of(FIRST), partition=partition)
        yield fixture


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[ProduceRequest]:
    """The Produce requests that were decoded: those that took no route."""
    handle = dispatch.HANDLERS[ApiKey.PRODUCE]
    requests: list[ProduceRequest] = []

    async def counting(
        request: ProduceRequest, context: RequestContext, services: Services
    ) -> object:
        requests.append(request)
        return await handle(request, context, services)

    monkeypatch.setitem(dispatch.HANDLERS, ApiKey.PRODUCE, counting)
    return requests


def request_of(
    batch: bytes, *, topic: str = "t", index: int = 0, acks: int = -1, number: int = 1
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=memoryview(batch))]
    topics = [TopicProduceData(name=topic, topic_id=topic_id(number), partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topics)


async def ask(
    client: DispatchClient, request: ProduceRequest, version: int
) -> PartitionProduceResponse:
    response = await client.ask(request, version, ProduceResponse)
    ((partition,),) = [topic.partition_responses for topic in response.responses]
    return partition


async def answers_to(client: DispatchClient, frame: bytes) -> list[bytes]:
    """The responses to a frame and to a request behind it, or what comes before the connection is
    closed."""
    probe = frame_of(ApiVersionsRequest(), 0, PROBE)
    client.writer.write(frame + probe)
    found: list[bytes] = []
    while not found or found[-1][:4] != struct.pack(">i", PROBE):
        try:
            found.append(bytes(await client.frame()))
        except (EOFError, ConnectionResetError):
            break
    return found


def log_end(fixture: DispatchFixture, index: int = 0) -> int:
    """Of a partition of the topic `t`."""
    store, number = fixture.harness.place("t", index)
    reader = fixture.harness.services.logs.reader(store)
    assert reader is not None
    return reader.status.log_end_offset(number)


async def answers_without_offsets(
    fixture: DispatchFixture, client: DispatchClient, frame: bytes, index: int = 0
) -> tuple[int, list[bytes]]:
    """How many records a frame appends, and the responses with `-` for where."""
    end = log_end(fixture, index)
    answers = await answers_to(client, frame)
    return log_end(fixture, index) - end, [
        each.replace(struct.pack(">q", end), b"-", 1) for each in answers
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
def test_the_response_has_the_same_bytes(
    fixture: DispatchFixture, decoded: list[ProduceRequest], version: int, acks: int
) -> None:
    frame = frame_of(request_of(batch_of(3), acks=acks, index=1), version, 7)

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        first, routed, unrouted = [
            await answers_without_offsets(fixture, each, frame, 1)
            for each in (client, client, other)
        ]
        assert len(decoded) == 2
        assert first == routed == unrouted
        assert routed[0] == 3
        assert b"-" in routed[1][0]

    fixture.run(scenario())


def test_records_of_all_sizes_take_the_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        end = FIRST
        for size in (1, 10, 60, 61, 62, 63, 64, 200, 16_000, 16_400, 300_000):
            partition = await ask(client, request_of(batch_of(2, size=size)), FLEXIBLE)
            assert (partition.error_code, partition.base_offset) == (0, end)
            end += 2

    fixture.run(scenario())
    assert len(decoded) == 1


def test_each_partition_has_its_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for base in range(3):
            for index in (0, 1):
                partition = await ask(client, request_of(batch_of(1), index=index), FLEXIBLE)
                assert (partition.index, partition.base_offset) == (index, FIRST + base)

    fixture.run(scenario())
    assert len(decoded) == 2


def test_a_connection_remembers_a_bounded_number(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for timeout_ms in range(ROUTES_MAX + 10):
            asked = request_of(batch_of(1))
            asked.timeout_ms = timeout_ms
            assert not (await ask(client, asked, V7)).error_code
        (connection,) = fixture.wire.connections.values()
        assert isinstance(connection.remembered, ProduceRoutes)
        assert len(connection.remembered.by_prefix) == ROUTES_MAX

    fixture.run(scenario())


@pytest.mark.parametrize("version", [V7, FLEXIBLE])
@pytest.mark.parametrize(
    "asked",
    [
        request_of(batch_of(1), acks=0),
        request_of(batch_of(1), acks=2),
        request_of(batch_of(1), topic="unknown", number=9),
        request_of(batch_of(1), index=2),
        request_of(batch_of(1)[:40]),
        request_of(b""),
        ProduceRequest(acks=-1, timeout_ms=5_000),
        ProduceRequest(acks=-1, transactional_id="x", timeout_ms=5_000),
        ProduceRequest(
            acks=-1,
            timeout_ms=5_000,
            topic_data=2 * request_of(batch_of(1)).topic_data,
        ),
    ],
)
def test_what_does_not_fit_makes_no_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest], version: int, asked: ProduceRequest
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            client.writer.write(frame_of(asked, version, 1))
            if asked.acks:
                await client.frame()
        assert not (await ask(client, request_of(batch_of(1)), version)).error_code

    fixture.run(scenario())
    assert len(decoded) == 3


def test_a_transactional_batch_takes_no_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    transactional = batch_of(
        1, producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )

    async def scenario() -> None:
        client = await fixture.connect()
        assert not (await ask(client, request_of(batch_of(1)), V7)).error_code
        refused = await ask(client, request_of(transactional), V7)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    fixture.run(scenario())
    assert len(decoded) == 2


def last_stable_offset(fixture: DispatchFixture) -> int:
    store, number = fixture.harness.place("t", 0)
    reader = fixture.harness.services.logs.reader(store)
    assert reader is not None
    return reader.status.last_stable_offset(number)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_of_a_transaction_take_a_route_once_their_partition_is_in_it(
    tmp_path: Path, decoded: list[ProduceRequest], version: int
) -> None:
    adds = version < 12

    async def scenario(fixture: DispatchFixture) -> None:
        producer = TransactionDialogue(await fixture.connect(), version)
        await producer.begin()
        for transaction in range(1, 4):
            if adds:
                await producer.add()
            before = len(decoded)
            for _ in range(5):
                assert await producer.send() == ErrorCode.NONE
            # The first batch asks for the coordinator's consent, unless the client has.
            assert len(decoded) == before + (not adds or transaction == 1)
            await producer.end()
            await producer.wait_until_complete()
            # Five records and a marker each: no batch came after its marker.
            assert last_stable_offset(fixture) == log_end(fixture) == 6 * transaction
        if adds:
            # The producer's epoch is the same, but its transaction has ended.
            before = len(decoded)
            assert await producer.send() != ErrorCode.NONE
            assert len(decoded) == before + 1
            assert last_stable_offset(fixture) == log_end(fixture)

    with dispatch_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_a_transaction_makes_no_new_route(tmp_path: Path) -> None:
    """Building one costs more than it saves a transaction of a single batch."""

    async def scenario(fixture: DispatchFixture) -> None:
        producer = TransactionDialogue(await fixture.connect(), 12)
        await producer.begin()
        routes: list[object] = []
        for _ in range(3):
            assert await producer.send() == ErrorCode.NONE
            (connection,) = fixture.wire.connections.values()
            assert isinstance(connection.remembered, ProduceRoutes)
            routes += connection.remembered.by_prefix.values()
            await producer.end()
            await producer.wait_until_complete()
        assert len(routes) == 3
        assert len(set(map(id, routes))) == 1

    with dispatch_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_a_fenced_producer_takes_no_route(tmp_path: Path, decoded: list[ProduceRequest]) -> None:
    async def scenario(fixture: DispatchFixture) -> None:
        former = TransactionDialogue(await fixture.connect(), 12)
        await former.begin()
        for _ in range(2):
            assert await former.send() == ErrorCode.NONE
        assert len(decoded) == 1
        successor = TransactionDialogue(await fixture.connect(), 12)
        while True:
            # The former one's transaction is aborted first.
            try:
                await successor.begin()
            except AssertionError:
                continue
            break
        end = log_end(fixture)
        assert await former.send() == ErrorCode.INVALID_PRODUCER_EPOCH
        assert len(decoded) == 2
        assert last_stable_offset(fixture) == log_end(fixture) == end

    with dispatch_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_a_batch_outside_of_transactions_takes_no_route_of_one(
    tmp_path: Path, decoded: list[ProduceRequest]
) -> None:
    async def scenario(fixture: DispatchFixture) -> None:
        producer = TransactionDialogue(await fixture.connect(), 12)
        await producer.begin()
        for _ in range(2):
            assert await producer.send() == ErrorCode.NONE
        assert len(decoded) == 1
        plain = request_of(batch_of(1))
        plain.transactional_id = "tx"
        assert (await ask(producer.client, plain, 12)).error_code == ErrorCode.NONE
        assert len(decoded) == 2

    with dispatch_fixture(tmp_path, GroupHarness) as fixture:
        fixture.run(scenario(fixture))


def test_a_client_with_a_long_id_has_no_routes(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for version in (V7, FLEXIBLE):
            for _ in range(2):
                long_id = "x" * PREFIX_BYTES_MAX
                frame = frame_of(request_of(batch_of(1)), version, 1, client_id=long_id)
                assert len(await answers_to(client, frame)) == 2

    fixture.run(scenario())
    assert len(decoded) == 4


def test_a_length_that_is_longer_than_it_must_be_makes_no_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    batch = batch_of(1)
    content = frame_of(request_of(batch), FLEXIBLE, 1)[4:]
    before, length, behind = content.partition(bytes([len(batch) + 1]) + batch)
    assert length
    padded = before + bytes([len(batch) + 1 | 0x80, 0]) + batch + behind
    frame = struct.pack(">i", len(padded)) + padded

    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            appended, _ = await answers_without_offsets(fixture, client, frame)
            assert appended == 1

    fixture.run(scenario())
    assert len(decoded) == 2


def delete_topic(fixture: DispatchFixture) -> None:
    fixture.harness.controller.write(TopicDeleted(topic_id(1)))
    fixture.harness.follow()


def lose_leadership(fixture: DispatchFixture) -> None:
    fixture.harness.lead("t", epoch=7, leader=OTHER)


def deny_writes(fixture: DispatchFixture) -> None:
    fixture.harness.deny(AclOperation.WRITE, ResourceType.TOPIC, "t")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lose_leadership, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (deny_writes, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (delete_topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_route_ends_when_what_it_was_made_of_changes(
    fixture: DispatchFixture,
    version: int,
    change: Callable[[DispatchFixture], None],
    code: ErrorCode,
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(2):
            assert not (await ask(client, request_of(batch_of(1)), version)).error_code
        change(fixture)
        expected = code
        if version >= 13 and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            expected = ErrorCode.UNKNOWN_TOPIC_ID
        for _ in range(2):
            assert (await ask(client, request_of(batch_of(1)), version)).error_code == expected

    fixture.run(scenario())


def test_another_principal_is_authorized_anew(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, request_of(batch_of(1)), V7)
        (connection,) = fixture.wire.connections.values()
        connection.peer_principal = "User:other"
        await ask(client, request_of(batch_of(1)), V7)

    fixture.run(scenario())
    assert len(decoded) == 2


def test_quotas_count_requests_that_have_a_route(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, request_of(batch_of(1)), V7)
        entity = (("user", None),)
        fixture.harness.controller.write(ClientQuotaChanged(entity, "producer_byte_rate", 10.0))
        fixture.harness.follow()
        response = await client.ask(request_of(batch_of(1)), V7, ProduceResponse)
        assert response.throttle_time_ms > 0

    fixture.run(scenario())
    assert len(decoded) == 2


def test_requests_that_have_a_route_are_traced(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        await ask(client, request_of(batch_of(1)), V7)
        tracer = fixture.harness.services.tracer
        session = tracer.renew(b"s" * 16, "User:ANONYMOUS", TraceFilter(), 60_000)
        await ask(client, request_of(batch_of(1)), V7)
        requests, _ = session.take()
        assert len(requests) == 1
        tracer.end(b"s" * 16)
        await ask(client, request_of(batch_of(1)), V7)

    fixture.run(scenario())
    assert len(decoded) == 2


def test_routed_requests_are_counted_and_measured(fixture: DispatchFixture) -> None:
    async def scenario() -> None:
        client = await fixture.connect()
        for _ in range(33):
            await ask(client, request_of(batch_of(1)), V7)

    fixture.run(scenario())
    assert fixture.dispatcher.request_counts[ApiKey.PRODUCE, V7] == 33
    counts = {api_key: each.count for api_key, each in fixture.wire.request_times.totals()}
    assert counts == {ApiKey.PRODUCE: 2}


def test_bytes_of_a_routed_request_are_kept_until_it_is_answered(
    fixture: DispatchFixture, decoded: list[ProduceRequest]
) -> None:
    batch = batch_of(1, size=1_000)  # It arrives in one piece, in the block of all connections.

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        asked = request_of(batch)
        await ask(client, asked, V7)
        fixture.harness.worker_client.holds_back = True
        correlation_id = client.post(asked, V7)
        noise = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 249)] * 400)
        for _ in range(80):
            await other.ask(noise, 12, MetadataResponse)
        assert len(decoded) == 1
        fixture.harness.worker_client.release_oldest()
        answer = await client.receive(correlation_id, asked, V7, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    fixture.run(scenario())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_worker_refuses_has_the_same_response(
    fixture: DispatchFixture, decoded: list[ProduceRequest], version: int
) -> None:
    """A wrong CRC, records that are out of range, a leader that has changed meanwhile."""
    corrupt = bytearray(batch_of(1))
    corrupt[-1] ^= 1
    late = batch_of(2, timestamp=NOW_MS + 10 * 86_400_000)

    async def scenario() -> None:
        client, other = await fixture.connect(), await fixture.connect()
        make = request_of(batch_of(1))
        await ask(client, make, version)
        for refused in (bytes(corrupt), late):
            frame = frame_of(request_of(refused), version, 5)
            before = len(decoded)
            routed = await answers_to(client, frame)
            assert len(decoded) == before
            assert routed == await answers_to(other, frame)
            assert len(decoded) == before + 1
        fixture.harness.worker_client.is_away = True
        frame = frame_of(request_of(batch_of(1)), version, 6)
        assert await answers_to(client, frame) == await answers_to(other, frame)

    fixture.run(scenario())
    errors = fixture.dispatcher.errors.counts
    assert errors[ApiKey.PRODUCE, ErrorCode.CORRUPT_MESSAGE] == 2
    assert errors[ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER] == 2


@pytest.mark.parametrize("version", [V7, FLEXIBLE, 13])
@pytest.mark.parametrize("seed", range(4))
def test_altered_requests_have_the_same_answer_with_and_without_routes(
    fixture: DispatchFixture, version: int, seed: int
) -> None:
    """Whatever a byte is changed to: the same response, or the same end of the connection."""
    dice = random.Random(seed)
    frame = frame_of(request_of(batch_of(1, size=2)), version, 3)

    def altered() -> bytes:
        content = bytearray(frame[4:])
        kind = dice.randrange(4)
        at = dice.randrange(len(content))
        if kind == 0:
            content[at] = dice.randrange(256)
        elif kind == 1:
            content[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del content[at:]
        else:
            content += dice.randbytes(dice.randrange(1, 5))
        return struct.pack(">i", len(content)) + content

    async def scenario() -> None:
        for _ in range(60):
            sent = altered()
            if sent[4:6] != b"\0\0":
                continue  # another API
            routed, plain = await fixture.connect(), await fixture.connect()
            assert len(await answers_to(routed, frame)) == 2
            with_route = await answers_without_offsets(fixture, routed, sent)
            assert with_route == await answers_without_offsets(fixture, plain, sent), sent.hex()
            routed.writer.close()
            plain.writer.close()

    fixture.run(scenario())

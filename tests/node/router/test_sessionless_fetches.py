"""Consumers without a session that catch up: they notice nothing.

That fetches are answered without being decoded is seen from what is remembered of the connection:
it is forgotten as soon as one has to be decoded, unless it names partitions that are not known.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.broker_settings import RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged, TopicDeleted
from odradek.node.bus.messages import WriteMarker
from odradek.node.router import sessionless_fetches
from odradek.node.router.fetch_routes import FEW_BYTES_MAX
from odradek.node.router.fetch_sessions import CachedPartition
from odradek.node.router.idle_fetches import IdleFetch
from odradek.node.router.large_fetches import REPEATED_AFTER
from odradek.node.router.produce_routes import ProduceRoutes
from odradek.node.router.sessionless_fetches import SessionlessFetch, is_sessionless
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    decode_request,
    decode_request_header,
    decode_response,
    decode_response_header,
)
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.records import TRANSACTIONAL
from tests.node.router.test_connection_handover import HandoverFixture, handover_fixture, trace
from tests.node.router.test_fetch_routes import set_a_quota
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient, produce_request
from tests.support.stores import NOW_MS, batch_of
from tests.support.wire import frame_of

VERSIONS = range(5, APIS[ApiKey.FETCH].max_version + 1)
NEWEST = VERSIONS[-1]
LARGE = batch_of(1, size=FEW_BYTES_MAX)
"""Alone it makes a response large."""
SMALL = batch_of(1)
AFTER = REPEATED_AFTER + 2
"""Fetches that are decoded."""
COUNT = 30
"""Records of each partition."""
IDS = {"t": 1, "u": 2}
Place = tuple[str, int]
ALL: Sequence[Place] = (("t", 0), ("t", 1), ("u", 0), ("u", 2))


class Logs:
    """Two topics with two and three partitions. Of the last place there are fewer records."""

    def __init__(self, handover: HandoverFixture) -> None:
        self.handover = handover
        self.harness = handover.fixture.harness
        self.run = handover.run
        self.harness.controller.has("u", 2, 3)
        self.harness.follow()
        for name, partition in ALL:
            count = 3 if (name, partition) == ALL[-1] else COUNT
            self.append(name, partition, LARGE, count)

    def append(self, name: str, partition: int, batch: bytes = LARGE, count: int = 1) -> None:
        for _ in range(count):
            self.harness.append(name, batch, partition=partition)
        self.handover.worker.send_replies()

    def configure(self, name: str, value: str) -> None:
        """A setting of all brokers."""
        self.harness.controller.write(
            ConfigChanged(ConfigResourceType.BROKER, "", name, value or None)
        )
        self.harness.follow()

    async def reader(self, version: int = NEWEST, **options: object) -> "Reader":
        return Reader(await self.handover.connect(), version, **options)  # type: ignore[arg-type]

    async def catching_up(self, version: int = NEWEST, **options: object) -> "Reader":
        """One whose next fetch is answered without being decoded, with more to read."""
        reader = await self.reader(version, **options)
        for _ in range(AFTER):
            assert not self.is_repeated
            assert (await reader.fetch()).responses
        assert self.is_repeated
        return reader

    @property
    def remembered(self) -> object:
        """Of the first connection."""
        return next(iter(self.handover.fixture.wire.connections.values())).remembered

    @property
    def is_repeated(self) -> bool:
        return isinstance(self.remembered, SessionlessFetch)

    @property
    def kept(self) -> SessionlessFetch:
        kept = self.remembered
        assert isinstance(kept, SessionlessFetch)
        return kept

    @property
    def known(self) -> set[Place]:
        """The partitions that need not be decoded."""
        names: dict[object, str] = {topic_id(number): name for name, number in IDS.items()}
        topics = self.kept.topics.values()
        return {(names[topic.key], at) for topic in topics for at in topic.partitions}


class Reader:
    """A consumer that reads the places in turns of one large batch each."""

    def __init__(
        self,
        client: DispatchClient,
        version: int = NEWEST,
        *,
        isolation_level: int = 0,
        max_bytes: int = 50 << 20,
        partition_bytes_max: int = len(LARGE) + len(SMALL),
    ) -> None:
        self.client = client
        self.version = version
        self.isolation_level = isolation_level
        self.max_bytes = max_bytes
        self.partition_bytes_max = partition_bytes_max
        self.min_bytes = 1
        self.wait_ms = 5_000
        self.rack_id = ""
        self.places: Sequence[Place] = ALL
        self.offsets: dict[Place, int] = dict.fromkeys(ALL, 0)

    def request(self) -> FetchRequest:
        topics: list[FetchTopic] = []
        for name, index in self.places:
            asked = FetchPartition(
                partition=index,
                fetch_offset=self.offsets.get((name, index), 0),
                partition_max_bytes=self.partition_bytes_max,
            )
            if not topics or topics[-1].topic != name:
                topics.append(FetchTopic(topic=name, topic_id=topic_id(IDS[name]), partitions=[]))
            topics[-1].partitions.append(asked)
        return FetchRequest(
            max_wait_ms=self.wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            session_epoch=-1,
            topics=topics,
            rack_id=self.rack_id,
        )

    async def exchange(self, correlation_id: int = 77) -> bytes:
        """The response's frame. The offsets stay."""
        self.client.writer.write(frame_of(self.request(), self.version, correlation_id))
        return bytes(await self.client.frame())

    def take(self, frame: bytes) -> FetchResponse:
        """Decode a response, and move behind its records."""
        _, at = decode_response_header(ApiKey.FETCH, self.version, frame)
        answer = decode_response(ApiKey.FETCH, self.version, frame, at)
        assert isinstance(answer, FetchResponse)
        names = {topic_id(number): name for name, number in IDS.items()}
        for topic in answer.responses:
            for data in topic.partitions:
                if size := record_bytes(data):
                    name = topic.topic or names[topic.topic_id]
                    self.offsets[name, data.partition_index] += (
                        1 if size < len(LARGE) else size // len(LARGE)
                    )
        return answer

    async def fetch(self) -> FetchResponse:
        return self.take(await self.exchange())

    async def data(self) -> list[PartitionData]:
        return [each for topic in (await self.fetch()).responses for each in topic.partitions]


def record_bytes(data: PartitionData) -> int:
    return len(bytes(data.records or b""))  # type: ignore[arg-type]  # decoded: one buffer


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with handover_fixture(tmp_path) as fixture:
        yield Logs(fixture)


async def compared(logs: Logs, reader: Reader, *, is_answered: bool = True) -> FetchResponse:
    """The next response, which must have the bytes of that to a client whose request is decoded."""
    other = await logs.reader(reader.version)
    fresh = other.client
    frame = await reader.exchange()
    assert logs.is_repeated is is_answered
    fresh.writer.write(frame_of(reader.request(), reader.version, 77))
    assert frame == bytes(await fresh.frame())
    return reader.take(frame)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_responses_have_the_same_bytes(logs: Logs, version: int, isolation_level: int) -> None:
    """Also of a partition that has nothing more."""

    async def scenario() -> None:
        reader = await logs.catching_up(version, isolation_level=isolation_level)
        for _ in range(3):
            answer = await compared(logs, reader)
            sizes = [record_bytes(data) for each in answer.responses for data in each.partitions]
            assert sizes == [len(LARGE)] * 3 + [0]

    logs.run(scenario())


@pytest.mark.parametrize("version", [5, 9, 12, NEWEST])
@pytest.mark.parametrize(
    "places",
    [
        [("u", 0), ("t", 1)],
        [("t", 1)],
        [("u", 2), ("t", 0), ("t", 1)],
        [("t", 0), ("u", 0), ("t", 1)],
        [("t", 0), ("t", 1), ("t", 0)],
    ],
)
def test_any_of_the_known_partitions_in_any_order(
    logs: Logs, places: Sequence[Place], version: int
) -> None:
    """At any offset. A topic or a partition that is named twice is decoded."""

    async def scenario() -> None:
        reader = await logs.catching_up(version)
        kept = logs.kept
        reader.places = places
        reader.offsets = {place: 2 - at % 3 for at, place in enumerate(ALL)}
        is_named_twice = len(places) == 3 and places[0][0] == places[2][0]
        await compared(logs, reader, is_answered=not is_named_twice)
        assert (logs.remembered is kept) is not is_named_twice

    logs.run(scenario())


def test_a_partition_that_is_not_known_is_decoded_once(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.reader()
        reader.places = ALL[:2]
        for _ in range(AFTER):
            await reader.fetch()
        assert logs.known == set(ALL[:2])
        kept = logs.kept
        reader.places = ALL[1:3]
        await compared(logs, reader)
        assert logs.known == set(ALL[:3])
        reader.places = ALL[:3]
        await compared(logs, reader)
        # The same partition with another limit.
        reader.partition_bytes_max *= 2
        answer = await compared(logs, reader)
        assert record_bytes(answer.responses[0].partitions[0]) == 2 * len(LARGE)
        assert logs.kept is kept
        assert logs.known == set(ALL[:3])

    logs.run(scenario())


@pytest.mark.parametrize("version", [11, NEWEST])
def test_fetches_of_one_partition_each_are_not_decoded(logs: Logs, version: int) -> None:
    """After each of them was decoded once."""

    async def scenario() -> None:
        reader = await logs.reader(version)
        for _ in range(AFTER + len(ALL)):
            reader.places = reader.places[1:] + reader.places[:1]  # type: ignore[operator]  # tuples
            reader.places, places = reader.places[:1], reader.places
            await reader.fetch()
            reader.places = places
        assert len(logs.kept.topics) == len(IDS)
        for place in ALL[:3]:
            reader.places = [place]
            await compared(logs, reader)

    logs.run(scenario())


def test_only_so_many_partitions_are_known(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessionless_fetches, "PARTITIONS_MAX", 2)

    async def scenario() -> None:
        reader = await logs.reader()
        reader.places = ALL[:2]
        for _ in range(AFTER):
            await reader.fetch()
        reader.places = ALL[1:3]
        await reader.fetch()
        assert logs.known == set(ALL[1:3])
        await compared(logs, reader)

    logs.run(scenario())


@pytest.mark.parametrize("max_bytes", [1, len(LARGE), len(LARGE) + 1, 3 * len(LARGE) - 1])
def test_the_bytes_are_shared_out_in_the_order_of_the_request(logs: Logs, max_bytes: int) -> None:
    """The first partition gets a batch, however large. A partition whose batch does not fit any
    more gets none, nor do those behind it."""

    async def scenario() -> None:
        reader = await logs.catching_up(max_bytes=max_bytes)
        for _ in range(3):
            answer = await compared(logs, reader)
            sizes = [record_bytes(data) for each in answer.responses for data in each.partitions]
            fits = max(1, max_bytes // len(LARGE))
            assert sizes == [len(LARGE)] * fits + [0] * (len(ALL) - fits)

    logs.run(scenario())


def behind_the_end(reader: Reader) -> int:
    reader.offsets[ALL[1]] = COUNT + 1
    return ErrorCode.OFFSET_OUT_OF_RANGE


def before_the_start(reader: Reader) -> int:
    reader.offsets[ALL[1]] = -1
    return ErrorCode.OFFSET_OUT_OF_RANGE


def of_no_partition(reader: Reader) -> int:
    reader.places = [ALL[0], ("t", 7)]
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("make", [behind_the_end, before_the_start, of_no_partition])
def test_errors_are_those_of_all_fetches(logs: Logs, make: Callable[[Reader], int]) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        expected = make(reader)
        codes = [data.error_code for data in await reader.data()]
        assert codes[:2] == [0, expected]
        assert not any(codes[2:])
        assert not logs.is_repeated

    logs.run(scenario())


@pytest.mark.parametrize("epoch", [5, 0])
def test_a_leader_epoch_is_looked_at(logs: Logs, epoch: int) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        request = reader.request()
        request.topics[0].partitions[1].current_leader_epoch = epoch
        answer = await reader.client.ask(request, NEWEST, FetchResponse)
        is_known = epoch == logs.harness.image.topics_by_name["t"].partitions[1].leader_epoch
        expected = 0 if is_known else ErrorCode.UNKNOWN_LEADER_EPOCH
        assert [data.error_code for data in answer.responses[0].partitions] == [0, expected]
        assert logs.is_repeated is is_known

    logs.run(scenario())


def deny_reads(logs: Logs) -> int:
    logs.harness.deny(AclOperation.READ, ResourceType.TOPIC, "t")
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def delete_topic(logs: Logs) -> int:
    logs.harness.controller.write(TopicDeleted(topic_id(1)))
    logs.harness.follow()
    return ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("change", [deny_reads, delete_topic])
def test_a_change_is_told_with_the_next_fetch(logs: Logs, change: Callable[[Logs], int]) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        expected = change(logs)
        codes = [data.error_code for data in await reader.data()]
        assert codes[0] == expected
        assert not any(codes[2:])
        assert not logs.is_repeated

    logs.run(scenario())


def test_a_store_whose_catalog_has_changed_is_looked_at_again(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        for each in logs.harness.partitions.stores.values():
            each.roll(NOW_MS)
        await compared(logs, reader, is_answered=False)

    logs.run(scenario())


def test_a_log_directory_that_is_offline_is_not_read(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        logs.harness.services.logs.take_offline([0])
        assert all(data.error_code for data in await reader.data())
        assert not logs.is_repeated

    logs.run(scenario())


@pytest.mark.parametrize("selector", ["", RACK_AWARE_SELECTOR])
def test_who_may_be_sent_to_its_rack_is_decoded(logs: Logs, selector: str) -> None:
    async def scenario() -> None:
        logs.configure("replica.selector.class", selector)
        reader = await logs.reader()
        reader.rack_id = "a"
        for _ in range(AFTER + 1):
            await reader.fetch()
        assert logs.is_repeated is not bool(selector)

    logs.run(scenario())


def test_the_broker_limits_a_response(logs: Logs) -> None:
    async def scenario() -> None:
        logs.configure("fetch.max.bytes", str(2 * len(LARGE)))
        reader = await logs.catching_up()
        answer = await compared(logs, reader)
        sizes = [record_bytes(data) for each in answer.responses for data in each.partitions]
        assert sizes == [len(LARGE)] * 2 + [0, 0]

    logs.run(scenario())


def test_who_has_become_a_follower_answers_from_what_is_replicated(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        logs.harness.lead("t", epoch=7, leader=2)
        await compared(logs, reader, is_answered=False)

    logs.run(scenario())


def begin_a_trace(logs: Logs) -> None:
    trace(logs.handover)


def set_quota(logs: Logs) -> None:
    set_a_quota(logs.handover)  # type: ignore[arg-type]  # it has a fixture


@pytest.mark.parametrize("change", [set_quota, begin_a_trace])
def test_what_is_counted_or_traced_is_decoded(logs: Logs, change: Callable[[Logs], None]) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        change(logs)
        services = logs.harness.services
        assert services.client_quotas.is_active or services.tracer.is_active
        for _ in range(2):
            assert record_bytes((await reader.data())[0]) == len(LARGE)
        if services.client_quotas.is_active:
            assert not logs.is_repeated

    logs.run(scenario())


def test_aborted_transactions_are_told(logs: Logs) -> None:
    harness = logs.harness

    async def scenario() -> None:
        reader = await logs.catching_up(isolation_level=1)
        transactional = batch_of(
            1,
            size=FEW_BYTES_MAX,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        logs.append("t", 1, transactional)
        place = harness.place("t", 1)
        reader.offsets["t", 1] = COUNT
        # It is open: nothing of it is sent.
        answer = await compared(logs, reader)
        assert [record_bytes(data) for data in answer.responses[0].partitions] == [len(LARGE), 0]
        marker = WriteMarker(1, *place, 9, 0, 0, is_commit=False, transaction_version=1)
        harness.turns.run([(RouterState(), marker)], NOW_MS)
        logs.handover.worker.send_replies()
        _, told = (await reader.data())[:2]
        assert told.aborted_transactions is not None
        assert [each.producer_id for each in told.aborted_transactions] == [9]
        assert not logs.is_repeated

    logs.run(scenario())


@pytest.mark.parametrize("min_bytes", [1, len(SMALL) + 1])
def test_who_has_caught_up_waits(logs: Logs, min_bytes: int) -> None:
    """For as many bytes as are asked for."""

    async def scenario() -> None:
        reader = await logs.reader()
        reader.min_bytes = min_bytes
        for _ in range(AFTER):
            await reader.fetch()
        assert logs.is_repeated
        reader.offsets = dict.fromkeys(ALL, COUNT)
        reader.offsets[ALL[-1]] = 3
        purgatory = logs.harness.services.fetch_purgatory
        reader.client.writer.write(frame_of(reader.request(), reader.version, 5))
        await logs.handover.until(lambda: purgatory.parked_count)
        logs.append("t", 1, SMALL)
        if min_bytes > 1:
            logs.append("u", 0, SMALL)
        answer = reader.take(bytes(await reader.client.frame()))
        sizes = [record_bytes(data) for each in answer.responses for data in each.partitions]
        assert sizes == [0, len(SMALL), len(SMALL) if min_bytes > 1 else 0, 0]
        assert not logs.is_repeated

    logs.run(scenario())


def test_too_few_bytes_are_waited_for(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.reader()
        reader.min_bytes = 2 * len(LARGE)
        for _ in range(AFTER):
            await reader.fetch()
        assert logs.is_repeated
        reader.offsets = dict.fromkeys(ALL, COUNT)
        reader.offsets["t", 0] = COUNT - 1
        reader.offsets[ALL[-1]] = 3
        purgatory = logs.harness.services.fetch_purgatory
        reader.client.writer.write(frame_of(reader.request(), reader.version, 5))
        await logs.handover.until(lambda: purgatory.parked_count)
        logs.append("u", 2)
        answer = reader.take(bytes(await reader.client.frame()))
        sizes = [record_bytes(data) for each in answer.responses for data in each.partitions]
        assert sizes == [len(LARGE), 0, 0, len(LARGE)]

    logs.run(scenario())


def test_who_finds_nothing_is_idle(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        reader.offsets = dict.fromkeys(ALL, COUNT)
        reader.offsets[ALL[-1]] = 3
        reader.wait_ms = 1
        for _ in range(2):
            assert not any(map(record_bytes, await reader.data()))
        assert isinstance(logs.remembered, IdleFetch)

    logs.run(scenario())


def test_a_small_rest_is_the_last_that_is_repeated(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        reader.offsets = dict.fromkeys(ALL, COUNT)
        reader.offsets[ALL[-1]] = 3
        logs.append(*ALL[-1], SMALL)
        await compared(logs, reader, is_answered=False)

    logs.run(scenario())


def test_small_batches_are_read_in_several_turns(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessionless_fetches, "BATCHES_PER_TURN", 6)

    async def scenario() -> None:
        reader = await logs.catching_up()
        reader.partition_bytes_max = 2 * len(LARGE) + len(SMALL)
        for _ in range(2):
            await reader.fetch()
        assert not logs.is_repeated

    logs.run(scenario())


def test_an_answer_counts_as_any_other(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        dispatcher, activity = (
            logs.handover.fixture.dispatcher,
            logs.harness.services.fetch_activity,
        )
        key = ApiKey.FETCH, NEWEST
        before = dispatcher.request_counts[key], dict(activity.sent)
        offset = reader.offsets[ALL[0]]
        await reader.fetch()
        assert logs.is_repeated
        assert dispatcher.request_counts[key] == before[0] + 1
        for number, count in ((1, 2), (2, 1)):
            was, now = before[1][topic_id(number)], activity.sent[topic_id(number)]
            assert now == (was[0] + count * len(LARGE), was[1] + count)
        readers = activity.of_topic("t", topic_id(1), logs.harness.now_ms)
        assert [each.offset for each in readers[0]] == [offset]
        assert set(readers) == {0, 1}
        (connection,) = logs.handover.fixture.wire.connections
        fetches = activity.of_connection(connection)
        assert fetches is not None
        assert fetches.client_id == "conformance"
        assert fetches.last[0] == CachedPartition(
            topic_id(1), 0, offset, reader.partition_bytes_max, -1, -1
        )

    logs.run(scenario())


def test_several_requests_at_once_are_answered_in_order(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        for number in range(5):
            reader.client.writer.write(frame_of(reader.request(), NEWEST, 1_000 + number))
        for number in range(5):
            assert struct.unpack_from(">i", await reader.client.frame()) == (1_000 + number,)
        assert logs.is_repeated

    logs.run(scenario())


def test_other_requests_between_fetches_do_not_matter(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        kept = logs.kept
        for _ in range(3):
            await reader.client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            await reader.fetch()
            assert logs.remembered is kept

    logs.run(scenario())


def test_a_producer_keeps_its_routes(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.reader()
        await reader.client.ask(produce_request(SMALL), 7, ProduceResponse)
        routes = logs.remembered
        assert isinstance(routes, ProduceRoutes)
        for _ in range(AFTER):
            await reader.fetch()
            assert logs.remembered is routes

    logs.run(scenario())


def set_wait(reader: Reader) -> None:
    reader.wait_ms += 1


def set_rack(reader: Reader) -> None:
    reader.rack_id = "a"


def set_isolation(reader: Reader) -> None:
    reader.isolation_level = 1


def set_limit(reader: Reader) -> None:
    reader.max_bytes = len(LARGE)


@pytest.mark.parametrize("change", [set_wait, set_rack, set_isolation, set_limit])
def test_a_request_that_says_something_else_is_decoded(
    logs: Logs, change: Callable[[Reader], None]
) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        change(reader)
        await compared(logs, reader, is_answered=False)

    logs.run(scenario())


def test_a_segment_is_held_until_the_client_has_read_it(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        reader.offsets = dict.fromkeys(ALL, 0)
        connection = next(iter(logs.handover.fixture.wire.connections.values()))
        posted = 0
        while not any(connection._holds or ()):
            reader.client.writer.write(frame_of(reader.request(), NEWEST, posted))
            posted += 1
            await reader.client.writer.drain()
            await asyncio.sleep(0)
        for _ in range(posted):
            assert len(await reader.client.frame()) > len(ALL) * len(LARGE)
        await logs.handover.until(lambda: not connection._holds)

    logs.run(scenario())


def test_a_request_that_ends_too_early_closes_its_connection(logs: Logs) -> None:
    async def scenario() -> None:
        reader = await logs.catching_up()
        frame = frame_of(reader.request(), NEWEST, 7)[4:]
        reader.client.send(frame[:-30])
        assert await reader.client.is_closed()

    logs.run(scenario())


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_mean_what_the_decoder_says(version: int) -> None:
    """Of a request with any of its bytes changed, and of its beginnings."""
    partitions = [
        FetchPartition(partition=2 * at, fetch_offset=at, partition_max_bytes=1) for at in range(3)
    ]
    topics = [
        FetchTopic(topic="t", topic_id=topic_id(1), partitions=partitions),
        FetchTopic(topic="u", topic_id=topic_id(2), partitions=partitions[:1]),
    ]
    request = FetchRequest(session_epoch=-1, topics=topics)
    frame = frame_of(request, version, 7)[4:]
    layout = sessionless_fetches._LAYOUTS[version]
    at = decode_request_header(memoryview(frame)).body_offset
    topics_at = at + layout.fields_bytes
    same = layout.topics(memoryview(frame), topics_at)
    assert same is not None
    assert same[0] == layout.topics_of(request)
    end = frame[same[1] :]
    found_count = 0
    changed = [
        frame[:place] + bytes([value]) + frame[place + 1 :]
        for place in range(topics_at, len(frame))
        for value in (0, 1, 2, 3, 127, 128, 255)
    ]
    for each in (*changed, *(frame[:end] for end in range(topics_at, len(frame)))):
        found = layout.topics(memoryview(each), topics_at)
        if found is None or each[found[1] :] != end:
            continue
        if layout.is_flexible and any(entry[-1] for _, entries in found[0] for entry in entries):
            continue  # nobody knows such a partition
        try:
            decoded = decode_request(ApiKey.FETCH, version, memoryview(each), at)
        except ProtocolError:
            assert not all(is_text(name) for name, _ in found[0])
            continue
        found_count += 1
        assert isinstance(decoded, FetchRequest)
        assert found[0] == layout.topics_of(decoded)
    assert found_count > len(frame)


def test_a_store_that_has_changed_since_partitions_were_located_is_looked_at_again(
    logs: Logs,
) -> None:
    """While the request that named them was under way."""

    async def scenario() -> None:
        reader = await logs.catching_up()
        other = copy(logs.kept)
        other.stores = set(other.stores)  # type: ignore[misc]  # a copy
        for each in logs.harness.partitions.stores.values():
            each.roll(NOW_MS)
        for store, log, _ in other.stores:
            logs.kept.stores.discard((store, log, log.status.generation - 1))
            logs.kept.stores.add((store, log, log.status.generation))
        logs.kept.add_all(other)
        await compared(logs, reader, is_answered=False)

    logs.run(scenario())


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_what_was_told_before_is_not_added_to(logs: Logs) -> None:
    """A request that was begun before something changed, and ends after it."""

    async def scenario() -> None:
        await logs.catching_up()
        kept = logs.kept
        for name in ("start", "end", "image_offset", "rules", "principal"):
            other = copy(kept)
            assert kept.is_like(other)
            setattr(other, name, object())
            assert not kept.is_like(other)

    logs.run(scenario())


def request_of_two() -> FetchRequest:
    partitions = [FetchPartition(partition=at, partition_max_bytes=1) for at in range(2)]
    topics = [FetchTopic(topic_id=topic_id(1), partitions=partitions)]
    return FetchRequest(session_epoch=-1, topics=topics)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_epoch", 0),
        ("session_id", 3),
        ("max_bytes", 0),
        ("replica_id", 3),
        ("replica_state", ReplicaState(replica_id=3)),
        ("forgotten_topics_data", [object()]),
        ("topics", []),
    ],
)
def test_other_fetches_are_not_sessionless(name: str, value: object) -> None:
    request = request_of_two()
    assert is_sessionless(request, NEWEST)
    setattr(request, name, value)
    assert not is_sessionless(request, NEWEST)


def test_very_many_partitions_are_not_for_here() -> None:
    request = request_of_two()
    partitions = request.topics[0].partitions
    assert not is_sessionless(request, VERSIONS[0] - 1)
    request.topics[0].partitions = partitions[:1]
    assert is_sessionless(request, NEWEST)
    request.topics[0].partitions = partitions * 50
    assert is_sessionless(request, NEWEST)
    request.topics[0].partitions = partitions * 51
    assert not is_sessionless(request, NEWEST)
    partitions[1].partition_max_bytes = 0
    request.topics[0].partitions = partitions
    assert not is_sessionless(request, NEWEST)

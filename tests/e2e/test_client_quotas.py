"""Client quotas as clients meet them: answers with a throttle time, and then a silent connection.

The answers to questions about quotas are compared with those that Apache Kafka 4.3.1 gave. Windows
are short here: two samples of a second.
"""

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.node.router.client_quotas import has_throttle_time
from odradek.node.router.dispatch import HANDLERS
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_response, decode_response_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.conformance.dialogue import batch_of, fetch_request, produce_request
from tests.support.quota_dialogue import KAFKA_ANSWERS, Entity, alter, answers, remove_all
from tests.support.waiting import is_readable, wait_until
from tests.support.wire import CLIENT_ID, WireClient, frame_of

TOPIC = "t"
RATE = 10_000.0
"""Bytes per second, of quotas of bytes."""
BATCH_BYTES = 15_000
"""A batch is above the quota of the shortest window, a second, by half."""
CLIENT: Entity = {"client-id": CLIENT_ID}
PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 9, 12, 3, 7


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"quota.window.num": "2", "num.partitions": "1"}
    with EmbeddedBroker(tmp_path_factory.mktemp("odradek"), settings=settings) as broker:
        with WireClient(broker.bootstrap_servers) as wire:
            create(wire, TOPIC)
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[WireClient]:
    """A connection to a broker without quotas."""
    with WireClient(broker.bootstrap_servers) as administrator:
        remove_all(administrator)
        with WireClient(broker.bootstrap_servers) as wire:
            yield wire
        remove_all(administrator)


def create(
    wire: WireClient, *names: str, partitions: int = 1, version: int = CREATE_TOPICS
) -> CreateTopicsResponse:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=10_000)
    return wire.ask(request, version, CreateTopicsResponse)


def limit(broker: EmbeddedBroker, entity: Entity, **quotas: float) -> None:
    with WireClient(broker.bootstrap_servers) as administrator:
        answer = alter(administrator, [(entity, dict(quotas))])
        assert [entry.error_code for entry in answer.entries] == [0]


def produce(wire: WireClient, *, count: int = 1, acks: int = -1) -> list[ProduceResponse]:
    """The responses to requests of BATCH_BYTES each, which are sent at once."""
    request = produce_request(TOPIC, {0: batch_of(b"x" * BATCH_BYTES)}, acks=acks)
    for _ in range(count):
        wire.post(request, PRODUCE, is_answered=acks != 0)
    return [wire.receive(ProduceResponse) for _ in range(count if acks else 0)]


def answered_after_s(wire: WireClient) -> float:
    """How long the next request on this connection takes."""
    start = time.monotonic()
    wire.ask(ApiVersionsRequest(), API_VERSIONS, ApiVersionsResponse)
    return time.monotonic() - start


def throttled(ask: Callable[[], FetchResponse]) -> FetchResponse:
    """The first answer that has a throttle time."""

    def answer() -> FetchResponse | None:
        answer = ask()
        return answer if answer.throttle_time_ms else None

    answered = wait_until(answer)
    assert answered is not None
    return answered


def test_questions_about_quotas_are_answered_as_by_kafka(wire: WireClient) -> None:
    recorded = json.loads(KAFKA_ANSWERS.read_text())
    for name, answer in answers(wire):
        # Through JSON, as what was recorded.
        assert json.loads(json.dumps(answer)) == recorded[name], name


def test_a_producer_is_answered_first_and_then_not_read_from(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    limit(broker, CLIENT, producer_byte_rate=RATE)
    (first,) = produce(wire)
    assert first.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    # With its header the request is a little larger than its batch.
    assert 500 < first.throttle_time_ms < 600
    start = time.monotonic()
    (second,) = produce(wire)
    assert time.monotonic() - start > 0.4
    assert second.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert 400 < second.throttle_time_ms < 1_700
    with WireClient(broker.bootstrap_servers) as other:
        answered_after_s(other)
    assert answered_after_s(wire) > 0.1


def test_acks_0_is_throttled_without_an_answer(broker: EmbeddedBroker, wire: WireClient) -> None:
    limit(broker, CLIENT, producer_byte_rate=RATE)
    produce(wire, count=2, acks=0)
    assert answered_after_s(wire) >= 0.5


def test_a_fetch_above_the_quota_is_answered_without_records(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    produce(wire)
    limit(broker, CLIENT, consumer_byte_rate=1.5 * RATE + 1_000)
    request = fetch_request(TOPIC, {0: 0}, max_bytes=1, session_epoch=0)
    answer = wire.ask(request, FETCH, FetchResponse)
    assert (answer.throttle_time_ms, len(answer.responses)) == (0, 1)
    assert answer.session_id
    # The second, or a later one on a slow machine.
    answer = throttled(lambda: wire.ask(request, FETCH, FetchResponse))
    assert not answer.responses
    # As in Kafka: a full fetch that is throttled begins no session.
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    assert answered_after_s(wire) >= answer.throttle_time_ms / 1000 - 0.05


def test_a_fetch_in_a_session_that_is_throttled_keeps_it(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    produce(wire)
    begun = wire.ask(fetch_request(TOPIC, {0: 0}, session_epoch=0), FETCH, FetchResponse)
    assert begun.session_id
    limit(broker, CLIENT, consumer_byte_rate=1.5 * RATE + 1_000)
    epochs = itertools.count(1)

    def ask() -> FetchResponse:
        request = fetch_request(
            TOPIC, {}, max_bytes=1, session_id=begun.session_id, session_epoch=next(epochs)
        )
        return wire.ask(request, FETCH, FetchResponse)

    answer = throttled(ask)
    assert not answer.responses
    assert answer.session_id == begun.session_id
    limit(broker, CLIENT, consumer_byte_rate=1e9)
    with WireClient(broker.bootstrap_servers) as consumer:
        request = fetch_request(TOPIC, {}, session_id=begun.session_id, session_epoch=next(epochs))
        answer = consumer.ask(request, FETCH, FetchResponse)
        assert answer.error_code == ErrorCode.NONE
        assert answer.responses


def test_the_time_of_requests_is_limited(broker: EmbeddedBroker, wire: WireClient) -> None:
    limit(broker, CLIENT, request_percentage=0.001)
    first = wire.ask(ApiVersionsRequest(), API_VERSIONS, ApiVersionsResponse)
    second = wire.ask(ApiVersionsRequest(), API_VERSIONS, ApiVersionsResponse)
    # At most one sample: a second.
    assert second.throttle_time_ms == 1_000
    assert first.throttle_time_ms <= 1_000
    assert answered_after_s(wire) >= 0.9


HARMLESS: dict[ApiKey, dict[str, object]] = {
    ApiKey.PRODUCE: {"acks": 1},
    ApiKey.UNREGISTER_BROKER: {"broker_id": 99},
}
"""What an otherwise empty request needs: to be answered, or to leave the node as it is."""


@pytest.mark.parametrize("which", [max, min])
def test_every_api_tells_of_the_throttle_and_is_not_read_from_meanwhile(
    broker: EmbeddedBroker, wire: WireClient, which: Callable[[int, int], int]
) -> None:
    """In the newest version and in the oldest one: an empty request of each API that is served.
    Where the response has no throttle_time_ms, the connection is silent nevertheless."""
    limit(broker, CLIENT, request_percentage=0.000_001)
    untold, read = [], []
    for key in HANDLERS:
        api = APIS[ApiKey(key)]
        version = which(api.min_version, api.max_version)
        request = api.request(**HARMLESS.get(api.key, {}))
        with WireClient(broker.bootstrap_servers) as client:
            response: object = client.ask(request, version, api.response)
            told = getattr(response, "throttle_time_ms", None)
            if has_throttle_time(key, version) and told != 1_000:
                untold.append((api.name, version, told))
            client.post(ApiVersionsRequest(), API_VERSIONS)
            if is_readable(client.socket, 0.01):
                read.append((api.name, version))
    assert untold == []
    assert read == []
    assert wire.ask(ApiVersionsRequest(), API_VERSIONS, ApiVersionsResponse).throttle_time_ms


def test_new_partitions_are_limited_strictly_and_for_old_requests_by_waiting(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    limit(broker, CLIENT, controller_mutation_rate=5.0)
    # A burst of eleven samples of five.
    answer = create(wire, "m-0", "m-1", partitions=57)
    assert [topic.error_code for topic in answer.topics] == [0, 89]
    assert answer.topics[1].error_message == "The throttling quota has been exceeded."
    assert 0 < answer.throttle_time_ms <= 400
    answer = create(wire, "m-2", partitions=10, version=5)
    assert [topic.error_code for topic in answer.topics] == [0]
    assert 1_500 < answer.throttle_time_ms <= 2_400
    assert answered_after_s(wire) >= answer.throttle_time_ms / 1000 - 0.05


def test_connections_of_an_address_are_limited(broker: EmbeddedBroker, wire: WireClient) -> None:
    limit(broker, {"ip": "127.0.0.1"}, connection_creation_rate=3.0)
    host, _, port = broker.bootstrap_servers.rpartition(":")

    def is_accepted() -> bool:
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(frame_of(ApiVersionsRequest(), API_VERSIONS, 1))
            try:
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
                frame = memoryview(connection.recv(size, socket.MSG_WAITALL))
            except ConnectionResetError:
                return False
            if not frame:
                return False
            _, at = decode_response_header(ApiKey.API_VERSIONS, API_VERSIONS, frame)
            decoded = decode_response(ApiKey.API_VERSIONS, API_VERSIONS, frame, at)
            return isinstance(decoded, ApiVersionsResponse)

    start = time.monotonic()
    accepted = [is_accepted() for _ in range(5)]
    # The window is of one second and what has passed of the next; those refused take their time.
    assert accepted[0]
    assert accepted.count(False) >= 1
    assert time.monotonic() - start >= 0.2
    # Connections that exist are not disturbed.
    assert alter(wire, [({"ip": "127.0.0.1"}, {"connection_creation_rate": None})]).entries
    assert all(is_accepted() for _ in range(5))


def test_librdkafka_is_told_of_throttles(broker: EmbeddedBroker, wire: WireClient) -> None:
    limit(broker, {"client-id": "throttled"}, producer_byte_rate=RATE, consumer_byte_rate=RATE)
    throttles: list[float] = []
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": "throttled",
        "throttle_cb": lambda event: throttles.append(event.throttle_time),
    }
    producer = Producer({**settings, "linger.ms": 0})
    for _ in range(2):
        producer.produce("librdkafka", b"x" * BATCH_BYTES)
        assert producer.flush(20) == 0
    wait_until(lambda: producer.poll(0) >= 0 and bool(throttles))
    throttles.clear()
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    values: list[bytes | None] = []

    def has_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
        return len(values) == 2

    wait_until(has_all)
    consumer.close()
    assert throttles

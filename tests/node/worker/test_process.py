"""The worker as a process: with links that the test plays, and killed in a real node."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, TypeAlias
from urllib.request import urlopen

import msgspec
import pytest
import zmq

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage, PartitionImage
from odradek.cluster.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
    encode_records,
)
from odradek.cluster.metadata.snapshot import image_records
from odradek.node.bus.endpoint import bind_endpoint, drain_with_identity, encode, ipc_address
from odradek.node.bus.messages import (
    AppendBytes,
    Appended,
    DescribeProducers,
    FromController,
    LivenessCheck,
    LivenessReply,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    ProducersDescribed,
    SubscribeMetadata,
    ToController,
    ToRouter,
    WorkerLeaving,
)
from odradek.node.child import python_command
from odradek.node.embedded import EmbeddedBroker
from odradek.node.machine_defaults import usable_processors
from odradek.node.router.logs import Logs
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from odradek.storage.settings import StoreOptions
from odradek.storage.store import Store
from tests.conformance.dialogue import (
    FETCH,
    append,
    batch_of,
    create_topic,
    fetch,
    fetch_request,
    partitions_of,
    produce,
    unique,
    values_of,
)
from tests.support.child_process import CLUSTER_ID, ChildProcess, node_config
from tests.support.manual_router import ManualRouter
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
WORKER = "worker-0"
LOOP_HELD_S_MAX: Final = 0.02
"""No request holds a loop for longer."""
_SPIN_SECONDS: Final = re.compile(r"^odradek_worker_spin_seconds_total\S* (\S+)$", re.MULTILINE)


# -- with a controller that is played --------------------------------------------------------------


class RunningWorker:
    """A worker process, the controller's end of its bus and a router's."""

    def __init__(self, folder: Path) -> None:
        self.config = node_config(folder)
        self._context: Context = zmq.Context()
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._unread: list[ToController] = []
        self._config_path = self.config.run_folder / "config.json"
        self.config.save_json(self._config_path)
        self._socket = self._bind()
        self.router = ManualRouter(self._context, self.config.run_folder)
        self.worker = self.start_worker()
        self.logs = Logs(self.config.stores_folders, self.config.store_count)
        self.image = MetadataImage.empty()

    def _bind(self) -> "zmq.Socket[bytes]":
        return bind_endpoint(self._context, ipc_address(self.config.run_folder, "controller"))

    def start_worker(self) -> ChildProcess:
        command = python_command("odradek.node.worker.process", str(self._config_path), "0")
        return ChildProcess(command, self.config.run_folder / "worker.log")

    def replace_controller(self) -> None:
        self._socket.close(0)
        self._unread.clear()
        self._socket = self._bind()

    def hear(self) -> ToController:
        """The worker's next message."""

        def has_come() -> bool:
            for identity, payload in drain_with_identity(self._socket):
                assert identity == WORKER.encode()
                self._unread.extend(self._decode(payload))
            return bool(self._unread)

        wait_until(has_come, what="the worker speaks")
        return self._unread.pop(0)

    def say(self, *messages: FromController) -> None:
        self._socket.send_multipart((WORKER.encode(), encode(list(messages))))

    def decide(self, *records: Record) -> MetadataRecords:
        """One more entry of the log."""
        base = self.image.offset
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(base + 1)
        return MetadataRecords(base, (encode_records(records),))

    def snapshot(self) -> MetadataSnapshot:
        return MetadataSnapshot(self.image.offset, (encode_records(image_records(self.image)),))

    def greet(self) -> None:
        """Accept the worker's subscription: it gets and applies all metadata."""
        assert isinstance(self.hear(), SubscribeMetadata)
        self.say(self.snapshot())
        assert self.hear() == MetadataApplied(WORKER, self.image.offset)

    def open_router(self) -> None:
        """A router answers the worker's greeting."""
        greeting = wait_until(self.router.receive_greeting, what="the worker greets its router")
        assert greeting is not None
        self.router.answer_greeting(greeting)

    def has_partitions(self, topic_id: bytes, count: int) -> list[bool]:
        return [self.logs.locate(topic_id, number) is not None for number in range(count)]

    def close(self) -> None:
        self.logs.close()
        self.worker.kill()
        self.router.close()
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[RunningWorker]:
    fixture = RunningWorker(tmp_path)
    fixture.decide(ClusterCreated(CLUSTER_ID))
    yield fixture
    fixture.close()


def topic_id(number: int) -> bytes:
    return number.to_bytes(16)


def topic(number: int, partitions: int = 3) -> tuple[Record, ...]:
    state = PartitionImage(replicas=(0,), in_sync_replicas=(0,), leader=0, leader_epoch=1)
    return (
        TopicCreated(f"t{number}", topic_id(number)),
        PartitionsAdded(topic_id(number), 0, (state,) * partitions),
    )


def test_a_worker_is_ready_when_its_stores_are_up_to_date_and_its_routers_are_connected(
    fixture: RunningWorker,
) -> None:
    fixture.decide(*topic(1))
    follow = fixture.hear()
    assert isinstance(follow, SubscribeMetadata)
    assert (follow.process, follow.offset, follow.cluster_id) == (WORKER, 0, CLUSTER_ID)
    fixture.say(fixture.snapshot())
    assert fixture.hear() == MetadataApplied(WORKER, 2)
    fixture.open_router()
    fixture.worker.wait_until_ready()
    assert fixture.has_partitions(topic_id(1), 3) == [True] * 3
    assert fixture.worker.metrics()["odradek_partitions"] == 3


def test_a_worker_reports_metadata_after_it_has_applied_it(fixture: RunningWorker) -> None:
    fixture.greet()
    fixture.say(fixture.decide(*topic(1)), fixture.decide(*topic(2, 1)))
    assert fixture.hear() == MetadataApplied(WORKER, 3)
    assert fixture.has_partitions(topic_id(1), 3) == [True] * 3
    assert fixture.has_partitions(topic_id(2), 1) == [True]
    fixture.say(fixture.decide(TopicDeleted(topic_id(1))))
    assert fixture.hear() == MetadataApplied(WORKER, 4)
    assert fixture.has_partitions(topic_id(1), 3) == [False] * 3
    assert fixture.worker.metrics()["odradek_partitions"] == 1


def test_a_worker_reports_configs_after_all_partitions_have_them(fixture: RunningWorker) -> None:
    fixture.greet()
    fixture.open_router()
    fixture.say(fixture.decide(*topic(1, 1_000)))
    assert fixture.hear() == MetadataApplied(WORKER, 2)
    changed = ConfigChanged(
        ConfigResourceType.TOPIC, "t1", "message.timestamp.type", "LogAppendTime"
    )
    fixture.say(fixture.decide(changed))
    assert fixture.hear() == MetadataApplied(WORKER, 3)
    location = fixture.logs.locate(topic_id(1), 999)
    assert location is not None
    fixture.router.ask(AppendBytes(5, *location[:2], batch_of(b"a"), is_client=True))
    (appended,) = fixture.router.hear()
    assert isinstance(appended, Appended)
    assert appended.log_append_time_ms > 0


def test_a_worker_answers_a_liveness_check(fixture: RunningWorker) -> None:
    fixture.greet()
    fixture.say(LivenessCheck())
    assert fixture.hear() == LivenessReply(WORKER)


def test_a_worker_requests_missing_metadata_and_subscribes_to_a_new_controller_at_its_offset(
    fixture: RunningWorker,
) -> None:
    fixture.greet()
    missed, late = fixture.decide(*topic(1)), fixture.decide(*topic(2))
    fixture.say(late)
    follow = fixture.hear()
    assert isinstance(follow, SubscribeMetadata)
    assert follow.offset == 1
    fixture.say(missed, late)
    assert fixture.hear() == MetadataApplied(WORKER, 3)
    fixture.replace_controller()
    again = fixture.hear()
    assert isinstance(again, SubscribeMetadata)
    assert (again.offset, again.incarnation) == (3, follow.incarnation)


def test_a_restarted_worker_deletes_partitions_that_were_deleted_meanwhile(
    fixture: RunningWorker,
) -> None:
    fixture.greet()
    fixture.say(fixture.decide(*topic(1), *topic(2)))
    assert fixture.hear() == MetadataApplied(WORKER, 2)
    fixture.worker.kill()
    fixture.decide(TopicDeleted(topic_id(1)))
    fixture.decide(*topic(3))
    fixture.worker = fixture.start_worker()
    follow = fixture.hear()
    assert isinstance(follow, SubscribeMetadata)
    assert follow.offset == 0, "a new process knows nothing"
    fixture.say(fixture.snapshot())
    assert fixture.hear() == MetadataApplied(WORKER, 4)
    found = [fixture.has_partitions(topic_id(number), 3)[0] for number in (1, 2, 3)]
    assert found == [False, True, True]


def test_a_stopping_worker_sends_worker_leaving_and_answers_its_requests(
    fixture: RunningWorker,
) -> None:
    fixture.greet()
    fixture.open_router()
    fixture.worker.wait_until_ready()
    fixture.router.ask(DescribeProducers(7, 0, 99))
    assert fixture.worker.stop() == 0
    heard: list[ToRouter] = []
    while WorkerLeaving() not in heard or len(heard) < 2:
        heard += fixture.router.hear()
    assert {type(message) for message in heard} == {WorkerLeaving, ProducersDescribed}


def test_a_stopped_worker_has_closed_its_stores(fixture: RunningWorker) -> None:
    fixture.greet()
    fixture.say(fixture.decide(*topic(1)))
    assert fixture.hear() == MetadataApplied(WORKER, 2)
    fixture.open_router()
    fixture.worker.wait_until_ready()
    assert fixture.worker.stop() == 0
    assert "stores are closed" in fixture.worker.log.read_text()
    held = 0
    for index in range(fixture.config.store_count):
        # Somebody else may own them now.
        store = Store.open(fixture.config.stores_folder / str(index), StoreOptions(), 0)
        held += len(store.partitions())
        store.close()
    assert held == 3


# -- in a real node --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("worker")) as broker:
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def name(wire: WireClient) -> str:
    name = unique("topic")
    assert create_topic(wire, name, 2).error_code == ErrorCode.NONE
    return name


def all_values(wire: WireClient, name: str, partition: int = 0) -> list[bytes | None]:
    """What a consumer reads that begins at 0; an answer may end where a segment does."""
    values: list[bytes | None] = []
    while True:
        data = fetch(wire, name, len(values), partition=partition)
        assert data.error_code == ErrorCode.NONE
        if len(values) == data.high_watermark:
            return values
        more = values_of(data)
        assert more
        values += more


def test_a_killed_worker_restarts_with_all_acknowledged_records(
    broker: EmbeddedBroker, wire: WireClient, name: str
) -> None:
    for number in range(20):
        append(wire, name, b"%d" % number)
    broker.kill_worker()
    # The very same connection goes on: the router waits for the next worker.
    assert produce(wire, name, batch_of(b"during")).error_code in (
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    broker.wait_until_ready()
    append(wire, name, b"after")
    values = all_values(wire, name)
    assert values[:20] == [b"%d" % number for number in range(20)]
    assert values[-1] == b"after"


def test_a_producer_continues_after_its_worker_was_killed(
    broker: EmbeddedBroker, wire: WireClient, name: str
) -> None:
    def send(sequence: int) -> tuple[int, int]:
        batch = batch_of(b"x", producer_id=4_711, producer_epoch=0, base_sequence=sequence)
        result = produce(wire, name, batch)
        return result.error_code, result.base_offset

    assert [send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
    broker.kill_worker()
    broker.wait_until_ready()
    assert send(2) == (ErrorCode.NONE, 2), "a duplicate, as before"
    assert send(4)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(3) == (ErrorCode.NONE, 3)


def test_a_long_poll_outlives_the_worker(
    broker: EmbeddedBroker, wire: WireClient, name: str
) -> None:
    wire.post(fetch_request(name, {0: 0}, max_wait_ms=60_000), FETCH)
    broker.kill_worker()
    broker.wait_until_ready()
    with WireClient(broker.bootstrap_servers) as other:
        append(other, name, b"news")
    assert values_of(partitions_of(wire.receive(FetchResponse))[0]) == [b"news"]


def test_a_topic_config_applies_at_once(wire: WireClient, name: str) -> None:
    batch = batch_of(b"x" * 2_000)
    assert produce(wire, name, batch).error_code == ErrorCode.NONE
    config = IncrementalAlterableConfig(name="max.message.bytes", config_operation=0, value="1000")
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC, resource_name=name, configs=[config]
            )
        ]
    )
    (answer,) = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE
    assert produce(wire, name, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topic_that_was_deleted_and_created_again_is_empty(wire: WireClient, name: str) -> None:
    append(wire, name, b"old")
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    (deleted,) = wire.ask(request, 5, DeleteTopicsResponse).responses
    assert deleted.error_code == ErrorCode.NONE
    assert create_topic(wire, name, 2).error_code == ErrorCode.NONE
    assert append(wire, name, b"new") == 0
    assert values_of(fetch(wire, name, 0)) == [b"new"]


def test_a_topic_created_while_the_worker_is_down_can_be_used_after_its_restart(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    broker.kill_worker()
    created = unique("orphan")
    assert create_topic(wire, created).error_code == ErrorCode.NONE

    def is_written() -> bool:
        result = produce(wire, created, batch_of(b"x"))
        assert result.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), result
        return result.error_code == ErrorCode.NONE

    wait_until(is_written, what="the topic takes records")
    broker.wait_until_ready()


def test_a_restarted_node_has_all_records(broker: EmbeddedBroker, name: str) -> None:
    with WireClient(broker.bootstrap_servers) as wire:
        append(wire, name, b"a", b"b")
        append(wire, name, b"c", partition=1)
    broker.restart()
    with WireClient(broker.bootstrap_servers) as wire:
        assert all_values(wire, name) == [b"a", b"b"]
        assert all_values(wire, name, 1) == [b"c"]
        assert append(wire, name, b"d") == 2


def _spin_s(broker: EmbeddedBroker) -> float:
    """CPU time in which the worker has waited for a lone client."""
    state = msgspec.json.decode((broker.data / STATE_NAME).read_bytes(), type=NodeState)
    with urlopen(f"http://{state.http}/metrics") as answer:
        (value,) = _SPIN_SECONDS.findall(answer.read().decode())
    return float(value)


def test_a_lone_producer_is_waited_for_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    """The others come through the router, because their requests are of two kinds."""
    count, busy, others = 3_000, unique("busy"), unique("others")
    times: list[float] = []
    with (
        EmbeddedBroker(tmp_path, settings={"http.listen": "127.0.0.1:0"}) as broker,
        WireClient(broker.bootstrap_servers) as lone,
        WireClient(broker.bootstrap_servers) as wire,
    ):
        for name in (busy, others):
            assert create_topic(wire, name, 1).error_code == ErrorCode.NONE

        def send() -> None:
            for number in range(count):
                append(lone, busy, b"%d" % number)

        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            began_s = perf_counter()
            append(wire, others, b"%d" % len(times))
            times.append(perf_counter() - began_s)
            fetch(wire, others, 0)
        thread.join()
        expected = [b"%d" % number for number in range(count)]
        assert all_values(wire, busy) == expected
        assert all_values(wire, others) == [b"%d" % number for number in range(len(times))]
        assert median(times) < 3 * LOOP_HELD_S_MAX

        def has_spun() -> bool:
            # A client with pauses is not waited for: not on a busy machine, then.
            for _ in range(500):
                append(lone, busy, b"more")
            return _spin_s(broker) > 0

        if usable_processors() > 1:
            wait_until(has_spun, what="the worker waits for the lone producer")
        else:
            assert not has_spun()

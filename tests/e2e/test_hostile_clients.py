"""Clients that are malicious or stuck cost little and disturb no other client."""

import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import Record, build_batch
from tests.e2e.conftest import Report, StartNode
from tests.support.background_client import BackgroundClient
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, frame_of

MIB = 1 << 20
LARGE = "large"
VALUE_BYTES = 900_000
LATENCY_MAX_S = 10.0
"""Latencies of other clients are printed; a machine with thirty busy processes stalls for seconds.
"""
REQUEST_BYTES_MAX = 104_857_600  # Kafka's default: socket.request.max.bytes


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A node under attack, with a topic of 90 MB."""
    with EmbeddedBroker(tmp_path_factory.mktemp("hostile")) as broker:
        broker.create_topic(LARGE)
        batch = memoryview(build_batch([Record(0, 1, None, b"x" * VALUE_BYTES)]))
        partition = PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            acks=1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=LARGE, partition_data=[partition])],
        )
        with WireClient(broker.bootstrap_servers) as wire:
            for _ in range(100):
                answer = wire.ask(request, 9, ProduceResponse)
                assert answer.responses[0].partition_responses[0].error_code == 0
        yield broker


def memory_of(broker: EmbeddedBroker) -> int:
    """Private memory of the node. Pages of its files and of its arena, which has a fixed size, do
    not count."""
    memory = [psutil.Process(pid).memory_info() for pid in broker.processes.values()]
    return sum(each.rss - getattr(each, "shared", 0) for each in memory)


class Watch:
    """Latency of other clients and memory of the node during a block of a test."""

    def __init__(self, broker: EmbeddedBroker, witness: BackgroundClient) -> None:
        self.broker = broker
        self.witness = witness
        self.before = memory_of(broker)
        self.peak = self.before

    def look(self) -> bool:
        """Record the memory that is in use now."""
        self.peak = max(self.peak, memory_of(self.broker))
        return True


@pytest.fixture
def watch(
    broker: EmbeddedBroker, request: pytest.FixtureRequest, report: Report
) -> Iterator[Watch]:
    """Other clients work all the time without delay; no process may end."""
    topic = f"witness-{request.node.name}"[:200].translate(str.maketrans("[]", "--"))
    broker.create_topic(topic)
    pids = broker.processes
    with BackgroundClient(broker.bootstrap_servers, topic) as witness:
        wait_until(lambda: witness.consumed_count > 100, what="the witness is at work")
        watch = Watch(broker, witness)
        yield watch
        watch.look()
        seen = witness.consumed_count
        wait_until(lambda: witness.consumed_count > seen + 100, what="the witness goes on")
    assert witness.complaints == []
    assert witness.slowest_s < LATENCY_MAX_S
    assert broker.processes == pids
    failures = [line for line in broker.log().splitlines() if '"level":"error"' in line]
    assert failures == []
    report(
        f"others waited {1000 * witness.slowest_s:.0f} ms at most;"
        f" memory {watch.before // MIB} -> {watch.peak // MIB} MiB at most"
    )


Connect = Callable[[], WireClient]


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Iterator[Connect]:
    """Opens connections that are closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(WireClient(broker.bootstrap_servers))


def fetch_all(correlation_id: int) -> bytes:
    """A fetch request for as much of the large topic as the broker returns at once."""
    partition = FetchPartition(fetch_offset=0, partition_max_bytes=50 * MIB)
    request = FetchRequest(
        max_bytes=50 * MIB,
        topics=[FetchTopic(topic=LARGE, partitions=[partition])],
    )
    return frame_of(request, 12, correlation_id)


def stuff(wire: WireClient, frame: bytes, limit: int) -> int:
    """Send the frame over and over without reading, until the socket accepts nothing for a while;
    returns the number of bytes."""
    wire.socket.settimeout(0.5)
    sent = 0
    while sent < limit:
        try:
            sent += wire.socket.send(frame)
        except OSError:  # a timeout is one
            break
    return sent


@pytest.mark.parametrize("size", [-1, REQUEST_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_an_impossible_length_ends_the_connection(
    connect: Connect, watch: Watch, size: int
) -> None:
    """Issue 3: "lengths of 2 GiB"."""
    for _ in range(50):
        wire = connect()
        wire.send_raw(struct.pack(">i", size) + b"x" * 100)
        wire.wait_until_closed()
    watch.look()
    assert watch.peak - watch.before < 16 * MIB


def test_announced_bytes_that_never_come_cost_nothing(connect: Connect, watch: Watch) -> None:
    """A hundred frames announce 100 MB each and send only their beginning."""
    wires = [connect() for _ in range(100)]
    for wire in wires:
        wire.send_raw(struct.pack(">ihhi", REQUEST_BYTES_MAX, 0, 9, 1) + b"\0" * 1000)
    wait_until(
        lambda: watch.look() and watch.witness.consumed_count > 300, what="others go on working"
    )
    assert watch.peak - watch.before < 32 * MIB


def test_a_client_that_never_reads_is_not_read_either(connect: Connect, watch: Watch) -> None:
    """Issue 3: "a client that never reads its responses": 200 times 50 MB are asked for."""
    wires = [connect() for _ in range(4)]
    for wire in wires:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send_raw(b"".join(fetch_all(number) for number in range(50)))
    seen = watch.witness.consumed_count
    wait_until(
        lambda: watch.look() and watch.witness.consumed_count > seen + 200, what="others go on"
    )
    assert watch.peak - watch.before < 64 * MIB


def test_small_requests_without_end_are_not_taken_without_end(
    connect: Connect, watch: Watch
) -> None:
    """A client that sends and never reads is stopped by the broker's limit of requests in
    flight."""
    frame = frame_of(MetadataRequest(topics=None), 12, 1) * 100
    wire = connect()
    sent = stuff(wire, frame, 200 * MIB)
    assert sent < 100 * MIB, "the broker goes on taking requests of somebody who reads no answer"
    watch.look()
    assert watch.peak - watch.before < 32 * MIB


def test_a_slow_reader_gets_everything_in_the_end(connect: Connect, watch: Watch) -> None:
    """Issue 3: "a slow reader": it reads a few KB at a time and delays no other client."""
    wire = connect()
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    wire.send_raw(fetch_all(7))
    (size,) = struct.unpack(">i", wire.socket.recv(4, socket.MSG_WAITALL))
    assert size > 40 * MIB
    received = 0
    seen = watch.witness.consumed_count
    while received < size:
        chunk = 4096 if watch.witness.consumed_count < seen + 200 else MIB
        data = wire.socket.recv(min(chunk, size - received))
        assert data
        received += len(data)
        if chunk == 4096:
            watch.look()
    wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert watch.peak - watch.before < 64 * MIB


def test_clients_that_vanish_in_the_middle_leave_nothing_behind(
    connect: Connect, watch: Watch
) -> None:
    """Resets during a request, during a response and during a long poll."""
    reset = struct.pack("ii", 1, 0)
    waiting = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=2**30,
        topics=[FetchTopic(topic=LARGE, partitions=[FetchPartition(fetch_offset=100)])],
    )
    halves = (fetch_all(1)[:-3], fetch_all(1), frame_of(waiting, 12, 1), struct.pack(">i", 5000))
    for number in range(1000):
        with WireClient(watch.broker.bootstrap_servers) as wire:
            wire.send_raw(halves[number % 4])
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    watch.look()
    assert watch.peak - watch.before < 64 * MIB
    router = psutil.Process(watch.broker.processes["router-0"])
    wait_until(lambda: len(router.net_connections()) < 30, what="the router has let them go")


def test_two_thousand_idle_connections_are_no_burden(connect: Connect, watch: Watch) -> None:
    """Issue 3: bounds for idle and half-open connections. Most of these have sent nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    idle = [connect() for _ in range(2000)]
    for wire in idle[::10]:
        wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    for wire in idle[5::10]:
        wire.send_raw(b"\0\0")
    watch.look()
    assert watch.peak - watch.before < 64 * MIB, "32 KiB for each"
    router = psutil.Process(watch.broker.processes["router-0"])
    assert len(router.net_connections()) > 1500
    for wire in idle[::10]:
        wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)


def test_connections_end_when_their_idle_time_is_up(start_node: StartNode) -> None:
    """Issue 3: "idle and half-open connection limits". A connection in use is kept."""
    broker = start_node({"connections.max.idle.ms": "1500"})
    connect = WireClient
    with connect(broker.bootstrap_servers) as idle, connect(broker.bootstrap_servers) as busy:
        idle.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        idle.socket.setblocking(False)

        def is_closed() -> bool:
            busy.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            try:
                return idle.socket.recv(1) == b""
            except BlockingIOError:
                return False

        wait_until(is_closed, timeout_s=20, what="the idle connection is closed")
        busy.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)


def test_a_host_has_no_more_connections_than_it_may(start_node: StartNode) -> None:
    """Kafka's max.connections.per.ip: only the connections above the limit are closed."""
    broker = start_node({"max.connections.per.ip": "10"})
    with ExitStack() as stack:
        # The node's own readiness check may still have a connection.
        wires = [stack.enter_context(WireClient(broker.bootstrap_servers)) for _ in range(9)]
        for wire in wires:
            wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        more = [stack.enter_context(WireClient(broker.bootstrap_servers)) for _ in range(5)]
        for wire in more[-3:]:
            wire.wait_until_closed()
        for wire in wires:
            wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    with WireClient(broker.bootstrap_servers) as wire:
        wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)

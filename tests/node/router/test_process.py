"""The router as a process of a real node: dynamic configs, killed processes, shutdown."""

import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.embedded import EmbeddedBroker
from odradek.node.router.graceful_stop import DRAIN_TIMEOUT_S
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from odradek.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.conformance.dialogue import (
    FETCH,
    METADATA,
    append,
    create_topic,
    fetch,
    fetch_request,
    partitions_of,
    unique,
    values_of,
)
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until
from tests.support.wire import ClosedByPeer, WireClient

pytestmark = pytest.mark.e2e

SET, DELETE = 0, 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One for this module; each test restores what it changes."""
    settings = {"http.listen": "127.0.0.1:0"}
    with EmbeddedBroker(tmp_path_factory.mktemp("router"), settings=settings) as broker:
        yield broker


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = unique("topic")
    broker.create_topic(name)
    return name


def configure(wire: WireClient, key: str, value: str | None, *, broker: str = "") -> None:
    """Set or remove a config of one broker or of all."""
    operation = DELETE if value is None else SET
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.BROKER,
        resource_name=broker,
        configs=[IncrementalAlterableConfig(name=key, config_operation=operation, value=value)],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE, answer


def is_served(broker: EmbeddedBroker, stack: ExitStack) -> bool:
    """Whether a new connection, which stays open, is answered."""
    client = stack.enter_context(WireClient(broker.bootstrap_servers))
    try:
        client.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    except (ClosedByPeer, ConnectionError):
        return False
    return True


def metric(broker: EmbeddedBroker, name: str) -> dict[str, float]:
    """The values of a metric by labels without the process."""
    state = msgspec.json.decode((broker.data / STATE_NAME).read_bytes(), type=NodeState)
    with urllib.request.urlopen(f"http://{state.http}/metrics", timeout=10) as response:
        text = response.read().decode()
    start = f'{name}{{process="router-0"'
    lines = (line[len(start) :] for line in text.splitlines() if line.startswith(start))
    return {labels: float(value) for labels, _, value in (line.rpartition(" ") for line in lines)}


def parked_count(broker: EmbeddedBroker) -> int:
    """The number of long polls."""
    return int(metric(broker, "odradek_delayed_fetches")["}"])


# -- settings at run time --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["", "0"], ids=["all brokers", "this broker"])
def test_a_connection_limit_applies_at_once(
    broker: EmbeddedBroker, wire: WireClient, scope: str
) -> None:
    key = "max.connections.per.ip"
    with ExitStack() as stack:
        configure(wire, key, "2", broker=scope)
        assert is_served(broker, stack)
        assert not is_served(broker, stack)
        wire.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
        configure(wire, key, None, broker=scope)
        assert is_served(broker, stack)


def test_a_listener_is_open_known_and_the_nodes_address_before_the_answer(
    broker: EmbeddedBroker, wire: WireClient
) -> None:
    port, protocols = free_port(), "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"
    extra = f"EXTRA://127.0.0.1:{port}"
    configure(wire, "listener.security.protocol.map", protocols, broker="0")
    configure(wire, "listeners", f"{extra},PLAINTEXT://{broker.bootstrap_servers}", broker="0")
    with WireClient(f"127.0.0.1:{port}") as added:
        metadata = added.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
        assert [each.port for each in metadata.brokers] == [port]

        def bootstrap() -> str:
            content = (broker.data / STATE_NAME).read_bytes()
            return msgspec.json.decode(content, type=NodeState).bootstrap

        wait_until(lambda: bootstrap() == f"127.0.0.1:{port}")
        configure(added, "listeners", None, broker="0")
        # Answered, and then closed.
        with pytest.raises((ClosedByPeer, ConnectionError)):
            added.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    wait_until(lambda: bootstrap() == broker.bootstrap_servers)
    configure(wire, "listener.security.protocol.map", None, broker="0")


@pytest.mark.parametrize("key", ["max.connections", "listener.name.plaintext.max.connections"])
def test_a_connection_waits_until_there_is_room(
    broker: EmbeddedBroker, wire: WireClient, key: str
) -> None:
    configure(wire, key, "1", broker="0")
    with WireClient(broker.bootstrap_servers) as waiting, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(waiting.ask, MetadataRequest(topics=[]), METADATA, MetadataResponse)
        wait_until(
            lambda: metric(broker, "odradek_connection_events_total")[',event="delayed"}'],
            what="the connection that waits",
        )
        assert not answer.done()
        configure(wire, key, None, broker="0")
        assert answer.result(LIVENESS_S).brokers


def test_a_connection_limit_survives_the_restart_of_the_router(broker: EmbeddedBroker) -> None:
    with WireClient(broker.bootstrap_servers) as wire:
        configure(wire, "max.connections.per.ip", "1")
    broker.kill_process("router-0")
    broker.wait_until_ready()
    with ExitStack() as stack:
        wait_until(lambda: is_served(broker, stack), what="the first connection is there")
        assert not is_served(broker, stack)
    wait_until(
        lambda: has_configured(broker, "max.connections.per.ip", None), what="the limit is lifted"
    )


def has_configured(broker: EmbeddedBroker, key: str, value: str | None) -> bool:
    """Set or remove the limit through another connection, which must be admitted first."""
    with WireClient(broker.bootstrap_servers) as wire:
        configure(wire, key, value)
    return True


# -- what one process does to the other ------------------------------------------------------------


def test_a_created_topic_can_be_used_at_once(wire: WireClient) -> None:
    """The answer waits until the router knows the topic and the worker has its partitions."""
    for _ in range(20):
        name = unique("fresh")
        assert create_topic(wire, name).error_code == ErrorCode.NONE
        assert append(wire, name, b"at once") == 0
        assert values_of(fetch(wire, name, 0)) == [b"at once"]


def test_a_long_poll_is_woken_by_an_append(
    broker: EmbeddedBroker, wire: WireClient, topic: str
) -> None:
    wire.post(fetch_request(topic, {0: 0}, max_wait_ms=60_000), FETCH)
    wait_until(lambda: parked_count(broker) == 1, what="the fetch is parked")
    with WireClient(broker.bootstrap_servers) as other:
        append(other, topic, b"news")
    assert values_of(partitions_of(wire.receive(FetchResponse))[0]) == [b"news"]
    assert parked_count(broker) == 0


def test_a_long_poll_ends_when_its_topic_is_deleted(
    broker: EmbeddedBroker, wire: WireClient, topic: str
) -> None:
    wire.post(fetch_request(topic, {0: 0}, max_wait_ms=60_000), FETCH)
    wait_until(lambda: parked_count(broker) == 1, what="the fetch is parked")
    with WireClient(broker.bootstrap_servers) as other:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        other.ask(request, 5, DeleteTopicsResponse)
    data = partitions_of(wire.receive(FetchResponse))[0]
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_produce_and_fetch_work_while_the_controller_is_down(
    broker: EmbeddedBroker, wire: WireClient, topic: str
) -> None:
    before = broker.processes
    broker.kill_process("controller")
    append(wire, topic, b"meanwhile")
    assert values_of(fetch(wire, topic, 0)) == [b"meanwhile"]
    # A command waits for the next controller, which knows all that the last one had answered.
    assert create_topic(wire, topic).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create_topic(wire, unique("after")).error_code == ErrorCode.NONE
    broker.wait_until_ready()
    after = broker.processes
    assert after["controller"] != before["controller"]
    assert (after["router-0"], after["worker-0"]) == (before["router-0"], before["worker-0"])


def producer_id(wire: WireClient) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = wire.ask(request, 4, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.NONE
    return answer.producer_id


def test_a_dead_router_is_replaced_at_its_address_and_allocates_no_producer_id_twice(
    broker: EmbeddedBroker, wire: WireClient, topic: str
) -> None:
    append(wire, topic, b"before")
    ids = {producer_id(wire) for _ in range(3)}
    address, worker = broker.bootstrap_servers, broker.processes["worker-0"]
    broker.kill_process("router-0")
    with pytest.raises((ClosedByPeer, ConnectionError)):
        wire.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    broker.wait_until_ready()
    assert broker.bootstrap_servers == address
    assert broker.processes["worker-0"] == worker
    with WireClient(address) as again:
        assert append(again, topic, b"after") == 1
        assert values_of(fetch(again, topic, 0)) == [b"before", b"after"]
        assert producer_id(again) not in ids


# -- the end ---------------------------------------------------------------------------------------


def test_a_stopping_node_ends_its_long_polls_at_once(
    tmp_path: Path,
) -> None:
    settings = {"http.listen": "127.0.0.1:0"}
    with EmbeddedBroker(tmp_path, settings=settings) as broker, ExitStack() as stack:
        broker.create_topic("t")
        clients = [stack.enter_context(WireClient(broker.bootstrap_servers)) for _ in range(3)]
        for client in clients:
            client.post(fetch_request("t", {0: 0}, max_wait_ms=60_000), FETCH)
        idle = stack.enter_context(WireClient(broker.bootstrap_servers))
        wait_until(lambda: parked_count(broker) == 3, what="the fetches are parked")
        began = time.monotonic()
        stopper = threading.Thread(target=broker.stop)
        stopper.start()
        for client in clients:
            data = partitions_of(client.receive(FetchResponse))[0]
            assert (data.error_code, values_of(data)) == (ErrorCode.NONE, [])
            client.wait_until_closed()
        idle.wait_until_closed()
        stopper.join()
        assert time.monotonic() - began < DRAIN_TIMEOUT_S
        assert "did not finish in time" not in broker.log()


def test_the_metrics_have_the_lag_of_groups(
    broker: EmbeddedBroker, wire: WireClient, topic: str
) -> None:
    append(wire, topic, b"read", b"unread", b"unread")
    group = unique("group")
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ],
    )

    def is_committed() -> bool:
        wire.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
        answer = wire.ask(request, 8, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    wait_until(is_committed, what="the group has committed")
    line = f',group="{group}",topic="{topic}"}}'
    wait_until(
        lambda: metric(broker, "odradek_group_lag_records").get(line) == 2,
        what="the lag is told",
    )
    assert line in metric(broker, "odradek_group_lag_seconds")
    configure(wire, "group.lag.metrics", "partition")
    by_partition = f',group="{group}",topic="{topic}",partition="0"}}'
    wait_until(
        lambda: metric(broker, "odradek_group_lag_records").get(by_partition) == 2,
        what="it is told by partition",
    )
    assert metric(broker, "odradek_group_lag_series_omitted") == {"}": 0}
    configure(wire, "group.lag.metrics", None)

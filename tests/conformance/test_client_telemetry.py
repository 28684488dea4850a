"""Metrics that clients push (KIP-714): the dialogue, librdkafka, and Kafka's Java client and tool.

Against Kafka the dialogue needs a receiver: a `metric.reporters` that is a ClientTelemetry.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.clients import (
    DescribeClientsRequest,
    DescribeClientsResponse,
    DescribedClientInstance,
)
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.routing import Nodes
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.otlp_samples import gauge, payload
from tests.support.waiting import wait_until
from tests.support.wire import CLIENT_ID, WireClient

CLIENT_METRICS = 16
SET, DELETE = 0, 1
INTERVAL_MS = 100
RECORD_COUNT = 500
CLIENT_METRICS_TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
PRODUCER_TEST = "org.apache.kafka.tools.ProducerPerformance"
SENT = "org.apache.kafka.producer.record.send.total"

ours_only = pytest.mark.skipif(
    "CONFORMANCE_BOOTSTRAP" in os.environ, reason="only Odradek tells of its clients"
)
needs_java = pytest.mark.skipif(
    bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"
)

Subscribe = Callable[..., str]


@pytest.fixture
def subscribe(nodes: Nodes, wire: WireClient) -> Iterator[Subscribe]:
    """Subscribes to the metrics of a client with a new id, and returns that when all nodes know."""
    names = []

    def subscribe(metrics: str, match: str | None = None) -> str:
        name = unique("client")
        names.append(name)
        match = match or f"client_id={name}"
        keys = {"metrics": metrics, "interval.ms": str(INTERVAL_MS), "match": match}
        _alter(wire, name, {key: (SET, value) for key, value in keys.items()})
        for address in nodes.addresses:
            wait_until(
                lambda: name in _subscriptions(address),  # noqa: B023  # called in the loop
                what=f"{address} knows the subscription",
            )
        return name

    yield subscribe
    for name in names:
        _alter(wire, name, dict.fromkeys(("metrics", "interval.ms", "match"), (DELETE, None)))


def _alter(wire: WireClient, name: str, changes: dict[str, tuple[int, str | None]]) -> None:
    resource = IncrementalAlterConfigsResource(
        resource_type=CLIENT_METRICS,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for key, (operation, value) in changes.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def _subscriptions(address: str) -> list[str]:
    with WireClient(address) as wire:
        answer = wire.ask(ListConfigResourcesRequest(), 0, ListConfigResourcesResponse)
    return [each.resource_name for each in answer.config_resources]


def instances(nodes: Nodes, client_id: str) -> list[DescribedClientInstance]:
    """The instances of a client that any node knows, with their metrics."""
    request = DescribeClientsRequest(client_ids=[client_id], include_metrics=True)
    found = []
    for address in nodes.addresses:
        with WireClient(address) as wire:
            found += wire.ask(request, 0, DescribeClientsResponse).instances
    return found


def values(nodes: Nodes, client_id: str) -> dict[str, float]:
    """The metrics that a client has pushed, summed up over nodes and labels."""
    told: dict[str, float] = {}
    for instance in instances(nodes, client_id):
        for metric in instance.metrics:
            told[metric.name] = told.get(metric.name, 0.0) + metric.value
    return told


# -- the dialogue ---------------------------------------------------------------------------------


def get(wire: WireClient, instance_id: bytes = bytes(16)) -> GetTelemetrySubscriptionsResponse:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return wire.ask(request, 0, GetTelemetrySubscriptionsResponse)


def push(wire: WireClient, told: GetTelemetrySubscriptionsResponse, **fields: object) -> ErrorCode:
    request = PushTelemetryRequest(
        client_instance_id=told.client_instance_id,
        subscription_id=told.subscription_id,
        metrics=payload(gauge("m", 1.0)),
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return ErrorCode(wire.ask(request, 0, PushTelemetryResponse).error_code)


def test_the_apis_are_advertised(wire: WireClient) -> None:
    answer = wire.ask(
        ApiVersionsRequest(client_software_name="c", client_software_version="1"),
        3,
        ApiVersionsResponse,
    )
    served = {each.api_key for each in answer.api_keys}
    assert {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY} <= served


@pytest.mark.no_restarts("an instance is forgotten with its connection")
def test_a_client_that_nobody_asks_pushes_nothing(cluster: DialogueCluster) -> None:
    with cluster.connect() as wire:
        told = get(wire)
        assert (told.error_code, told.requested_metrics) == (ErrorCode.NONE, [])
        assert any(told.client_instance_id)
        assert told.accepted_compression_types == [4, 3, 1, 2]
        assert (told.push_interval_ms, told.telemetry_max_bytes) == (300_000, 1_048_576)
        assert told.delta_temporality
        again = get(wire, told.client_instance_id)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.no_restarts("an instance is forgotten with its connection")
def test_who_may_push_when(nodes: Nodes, subscribe: Subscribe) -> None:
    subscribe("b.,a.", match=f"client_id={CLIENT_ID}")
    with WireClient(nodes.next_address()) as wire:
        told = get(wire)
        assert sorted(told.requested_metrics) == ["a.", "b."]
        assert told.push_interval_ms == INTERVAL_MS
        assert push(wire, told, client_instance_id=bytes(16)) is ErrorCode.INVALID_REQUEST
        assert push(wire, told, subscription_id=told.subscription_id ^ 1) is (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        )
        for fields, code in (
            ({"compression_type": 9}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            ({"metrics": bytes(told.telemetry_max_bytes + 1)}, ErrorCode.TELEMETRY_TOO_LARGE),
            ({"metrics": b"?" * 50, "compression_type": 1}, ErrorCode.INVALID_RECORD),
            ({}, ErrorCode.NONE),
        ):
            assert push_when_due(wire, told, **fields) is code
        assert push(wire, told, terminating=True) is ErrorCode.NONE
        assert push(wire, told) is ErrorCode.INVALID_REQUEST


def push_when_due(
    wire: WireClient, told: GetTelemetrySubscriptionsResponse, **fields: object
) -> ErrorCode:
    """The answer once the interval has passed since the push before."""
    answers: list[ErrorCode] = []

    def is_due() -> bool:
        answers.append(push(wire, told, **fields))
        return answers[-1] is not ErrorCode.THROTTLING_QUOTA_EXCEEDED

    wait_until(is_due, what="the interval has passed")
    return answers[-1]


# -- real clients ---------------------------------------------------------------------------------


@ours_only
@pytest.mark.no_restarts("metrics are kept by the node that they were pushed to")
def test_librdkafka_pushes_its_metrics(
    nodes: Nodes, cluster: DialogueCluster, topic: str, subscribe: Subscribe
) -> None:
    name = subscribe("*")
    common = {"bootstrap.servers": cluster.bootstrap, "client.id": name, "log_level": 0}
    producer = Producer(common)
    consumer = Consumer({**common, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    producer.produce(topic, b"x")
    producer.flush(30)
    wait_until(lambda: consumer.poll(0.05), what="a record is consumed")
    wanted = {
        "org.apache.kafka.producer.connection.creation.total",
        "org.apache.kafka.consumer.coordinator.assigned.partitions",
    }
    wait_until(lambda: wanted <= values(nodes, name).keys(), what="both push their metrics")
    found = instances(nodes, name)
    assert {each.software_name for each in found} == {"confluent-kafka-python"}
    consumer.close()
    del producer
    wait_until(
        lambda: any(each.is_terminated for each in instances(nodes, name)),
        what="the clients say that they end",
    )


@ours_only
@pytest.mark.no_restarts("metrics are kept by the node that they were pushed to")
@pytest.mark.java
@needs_java
def test_a_java_client_pushes_its_metrics(
    nodes: Nodes, cluster: DialogueCluster, topic: str, subscribe: Subscribe, tmp_path: Path
) -> None:
    """Its deltas add up to what it has sent. Before it ends it flushes (to print its metrics), so
    the last push has them all; it is not sent if the client ends while another one is answered."""
    name = subscribe("org.apache.kafka.producer.record.")
    done = run_java_tool(
        PRODUCER_TEST,
        *("--topic", topic, "--num-records", str(RECORD_COUNT), "--record-size", "100"),
        *("--throughput", str(RECORD_COUNT), "--print-metrics"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap}", f"client.id={name}"),
        directory=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = values(nodes, name)
    found = instances(nodes, name)
    assert {each.software_name for each in found} == {"apache-kafka-java"}
    assert all(each.startswith("org.apache.kafka.producer.record.") for each in told)
    if any(each.is_terminated for each in found):
        assert told[SENT] == RECORD_COUNT
    else:
        assert 0 <= told[SENT] <= RECORD_COUNT


@pytest.mark.java
@needs_java
def test_kafkas_tool_for_client_metrics(cluster: DialogueCluster, tmp_path: Path) -> None:
    """What it prints is what it printed against Kafka 4.3.1."""
    name = unique("tool")

    def tool(*arguments: str, returncode: int = 0) -> list[str]:
        done = run_java_tool(
            CLIENT_METRICS_TOOL,
            *("--bootstrap-server", cluster.bootstrap, *arguments),
            directory=tmp_path,
        )
        assert done.returncode == returncode, done.stdout + done.stderr
        return done.stdout.splitlines()

    alter = ("--alter", "--name", name)
    prefixes = "org.apache.kafka.producer.,org.apache.kafka.consumer."
    assert tool(
        *alter, "--metrics", prefixes, "--interval", "1000", "--match", "client_id=a.*"
    ) == [f"Altered client metrics config for {name}."]
    assert name in tool("--list")
    assert tool("--describe", "--name", name) == [
        f"Client metrics configs for {name} are:",
        "  interval.ms=1000",
        "  match=client_id=a.*",
        f"  metrics={prefixes}",
    ]
    [error, *_] = tool(*alter, "--interval", "5", returncode=1)
    assert error == (
        "Error while executing client metrics command : Invalid value 5 for interval.ms, interval"
        " must be between 100 and 3600000 (1 hour)"
    )
    assert tool("--delete", "--name", name) == [f"Deleted client metrics config for {name}."]
    assert name not in tool("--list")

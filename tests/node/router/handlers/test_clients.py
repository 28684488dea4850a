"""DescribeClients: who is connected, and what they push."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.handlers import clients as module
from odradek.node.router.handlers.clients import handle_describe_clients
from odradek.node.router.handlers.telemetry import (
    handle_get_telemetry_subscriptions,
    handle_push_telemetry,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.clients import DescribeClientsRequest, DescribeClientsResponse
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from tests.support.otlp_samples import counter, payload
from tests.support.router_harness import RouterHarness

JAVA = ConnectedClient("orders", "java", "4.3", "10.0.0.7", 1, 990_000)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    metrics = ConfigResourceType.CLIENT_METRICS
    harness.controller.set_config(metrics, "all", metrics="*", interval_ms="1000")
    harness.follow()
    yield harness
    harness.close()


def describe(
    harness: RouterHarness, *client_ids: str, instances: list[bytes] | None = None
) -> DescribeClientsResponse:
    request = DescribeClientsRequest(
        client_ids=list(client_ids) or None,
        client_instance_ids=instances,
        include_metrics=bool(client_ids or instances),
    )
    return harness.call(handle_describe_clients, request)


def subscribe(harness: RouterHarness) -> bytes:
    answer = harness.call(handle_get_telemetry_subscriptions, GetTelemetrySubscriptionsRequest())
    return answer.client_instance_id


def push(harness: RouterHarness, instance_id: bytes, *, last: bool = False) -> None:
    known = harness.services.telemetry.instances.get(instance_id)
    assert known is not None
    request = PushTelemetryRequest(
        client_instance_id=instance_id,
        subscription_id=known.subscription.subscription_id,
        metrics=payload(counter("org.apache.kafka.sent.total", 3, topic="t"), group_id="g"),
        terminating=last,
    )
    harness.call(handle_push_telemetry, request)


def test_connections_are_counted_by_client(harness: RouterHarness) -> None:
    connected = harness.services.connected_clients
    connected.add(1, JAVA)
    connected.add(2, JAVA._replace(port=2, since_ms=995_000))
    connected.add(3, JAVA._replace(client_id="billing"))
    orders, billing = describe(harness).clients
    assert (orders.client_id, orders.software_name, orders.software_version) == JAVA[:3]
    assert (orders.client_host, orders.connection_count) == ("10.0.0.7", 2)
    assert orders.connected_ms == 10_000
    assert (billing.client_id, billing.connection_count) == ("billing", 1)
    assert [each.client_id for each in describe(harness, "billing").clients] == ["billing"]
    assert describe(harness, "nobody") == DescribeClientsResponse()


def test_instances_are_told_with_their_subscription(harness: RouterHarness) -> None:
    instance_id = subscribe(harness)
    [instance] = describe(harness).instances
    assert instance.client_instance_id == instance_id
    assert (instance.client_id, instance.software_name) == ("test", "unknown")
    assert (instance.client_host, instance.requested_metrics) == ("127.0.0.1", ["*"])
    assert (instance.push_interval_ms, instance.pushed_ms, instance.series_count) == (1_000, -1, 0)


def test_metrics_are_told_of_clients_that_are_named(harness: RouterHarness) -> None:
    instance_id = subscribe(harness)
    push(harness, instance_id)
    [listed] = describe(harness).instances
    assert (listed.series_count, listed.metrics) == (1, [])
    [instance] = describe(harness, "test").instances
    assert describe(harness, instances=[instance_id]).instances[0].metrics == instance.metrics
    assert describe(harness, instances=[bytes(16)]).instances == []
    [metric] = instance.metrics
    assert (metric.name, metric.value, metric.is_counter) == (
        "org.apache.kafka.sent.total",
        3.0,
        True,
    )
    assert [(label.name, label.value) for label in metric.labels] == [("topic", "t")]
    assert [(each.name, each.value) for each in instance.attributes] == [("group_id", "g")]
    assert 0 <= instance.pushed_ms < 60_000


def test_a_client_that_has_ended_is_told_for_a_while(harness: RouterHarness) -> None:
    push(harness, subscribe(harness), last=True)
    harness.services.on_disconnected(0)
    [instance] = describe(harness).instances
    assert instance.is_terminated
    assert instance.push_interval_ms == -1
    assert instance.series_count == 1


def test_what_is_over_the_limit_is_counted(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    for connection in range(3):
        client = JAVA._replace(client_id=f"c{connection}")
        harness.services.connected_clients.add(connection, client)
    subscribe(harness)
    subscribe(harness)
    answer = describe(harness)
    assert (len(answer.clients), len(answer.instances), answer.omitted_count) == (1, 1, 3)


def test_describing_needs_describe_on_the_cluster(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    with pytest.raises(ApiError) as refused:
        describe(harness)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED

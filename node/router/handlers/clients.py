"""DescribeClients (20009, version 0): who is connected to this node, and what they push (KIP-714).

A private API (protocol/messages/clients.py). Each node knows its own connections; the command line
asks all nodes (node/cli/client.py).
"""

from collections.abc import Iterable
from typing import Final

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.node.router.telemetry.client_metrics import ClientMetrics
from odradek.node.router.telemetry.receiver import TelemetryReceiver
from odradek.protocol.messages.clients import (
    DescribeClientsRequest,
    DescribeClientsResponse,
    DescribedClient,
    DescribedClientInstance,
    DescribedClientMetric,
    DescribedLabel,
)

CLIENTS_MAX: Final = 10_000
"""Clients, and instances, in one response."""


async def handle_describe_clients(
    request: DescribeClientsRequest, context: RequestContext, services: Services
) -> DescribeClientsResponse:
    """Needs DESCRIBE on the cluster."""
    services.authorizer.authorize(context, AclOperation.DESCRIBE, ResourceType.CLUSTER)
    response = DescribeClientsResponse()
    is_all = request.client_ids is None and request.client_instance_ids is None
    ids = frozenset(request.client_ids or ())
    instance_ids = frozenset(request.client_instance_ids or ())
    now_ms = services.now_ms()
    groups: dict[ConnectedClient, DescribedClient] = {}
    async for client in iterate_cooperatively(services.connected_clients, context):
        if is_all or client.client_id in ids:
            _count(client, groups, response, now_ms)
    response.clients = list(groups.values())
    telemetry = services.telemetry
    known = [each.instance_id for each in telemetry.instances]
    pushing = [each.client.instance_id for each in telemetry.metrics.clients(telemetry.now_ms)]
    async for instance_id in iterate_cooperatively(dict.fromkeys((*known, *pushing)), context):
        described = _instance(instance_id, telemetry)
        if is_all or described.client_id in ids or instance_id in instance_ids:
            if len(response.instances) == CLIENTS_MAX:
                response.omitted_count += 1
                continue
            metrics = telemetry.metrics.get(instance_id)
            if metrics is not None:
                async for metric in iterate_cooperatively(
                    _metrics(metrics) if request.include_metrics else (), context
                ):
                    described.metrics.append(metric)
            response.instances.append(described)
    return response


def _count(
    client: ConnectedClient,
    groups: dict[ConnectedClient, DescribedClient],
    response: DescribeClientsResponse,
    now_ms: int,
) -> None:
    key = client._replace(port=0, since_ms=0)
    group = groups.get(key)
    if group is None:
        if len(groups) == CLIENTS_MAX:
            response.omitted_count += 1
            return
        group = groups[key] = DescribedClient(
            client_id=client.client_id,
            software_name=client.software_name,
            software_version=client.software_version,
            client_host=client.host,
        )
    group.connection_count += 1
    group.connected_ms = max(group.connected_ms, now_ms - client.since_ms, 0)


def _instance(instance_id: bytes, telemetry: TelemetryReceiver) -> DescribedClientInstance:
    described = DescribedClientInstance(client_instance_id=instance_id)
    instance = telemetry.instances.get(instance_id)
    if instance is not None:
        attributes = instance.attributes
        described.client_id = attributes.client_id or ""
        described.software_name = attributes.client_software_name
        described.software_version = attributes.client_software_version
        described.client_host = attributes.client_source_address
        described.requested_metrics = list(instance.subscription.metrics)
        described.push_interval_ms = instance.subscription.interval_ms
        described.is_terminated = instance.is_terminated
    metrics = telemetry.metrics.get(instance_id)
    if metrics is not None:
        client = metrics.client
        described.client_id = client.client_id
        described.software_name = client.software_name
        described.software_version = client.software_version
        described.client_host = client.host
        described.pushed_ms = telemetry.now_ms - metrics.last_push_ms
        described.is_terminated |= metrics.is_terminated
        described.series_count = len(metrics.values)
        described.omitted_count = metrics.omitted_count
        described.attributes = [
            DescribedLabel(name=name, value=text) for name, text in metrics.resource
        ]
    return described


def _metrics(metrics: ClientMetrics) -> Iterable[DescribedClientMetric]:
    for series, value in list(metrics.series()):
        yield DescribedClientMetric(
            name=series.source_name,
            labels=[DescribedLabel(name=name, value=text) for name, text in series.labels],
            is_counter=series.kind == "counter",
            value=value,
        )

"""GetTelemetrySubscriptions (71, version 0) and PushTelemetry (72, version 0): metrics that clients
push (KIP-714). As in Kafka they need no authorization: a client only gets what an administrator has
subscribed to, and only tells of itself."""

from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.telemetry.subscriptions import UNKNOWN_SOFTWARE
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)


async def handle_get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext, services: Services
) -> GetTelemetrySubscriptionsResponse:
    """The metrics that the client shall push, and its id if it has none."""
    client = _client(context, services)
    return services.telemetry.subscribe(request, client, context.connection_id)


async def handle_push_telemetry(
    request: PushTelemetryRequest, context: RequestContext, services: Services
) -> PushTelemetryResponse:
    """Metrics of a client. They are kept before the answer."""
    await services.telemetry.push(request, _client(context, services), context.connection_id)
    return PushTelemetryResponse()


def _client(context: RequestContext, services: Services) -> ConnectedClient:
    """The client as this request has it, with what it said when it connected."""
    known = services.connected_clients.of(context.connection_id)
    return ConnectedClient(
        client_id=context.client_id or "",
        software_name=UNKNOWN_SOFTWARE if known is None else known.software_name,
        software_version=UNKNOWN_SOFTWARE if known is None else known.software_version,
        host=context.client_host,
        port=context.client_port,
        since_ms=0 if known is None else known.since_ms,
    )

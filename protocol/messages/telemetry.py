"""Metrics that clients push (KIP-714): GetTelemetrySubscriptions (71), PushTelemetry (72)."""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorCodeResponse
from odradek.protocol.schema import array, binary, boolean, int8, int32, string, struct, uuid
from odradek.protocol.types import Request, Uuid


@struct
class GetTelemetrySubscriptionsRequest(Request["GetTelemetrySubscriptionsResponse"]):
    """Get the metrics to push. A zero client id requests a new one."""

    client_instance_id: Uuid = uuid()


@struct
class GetTelemetrySubscriptionsResponse(ErrorCodeResponse):
    """The metrics to push, their encoding and interval.

    In `requested_metrics` the single name `*` means all metrics, and an empty list none.
    """

    client_instance_id: Uuid = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(string)


@struct
class PushTelemetryRequest(Request["PushTelemetryResponse"]):
    """Metrics in OTLP, compressed as the subscription says."""

    client_instance_id: Uuid = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = binary()


@struct
class PushTelemetryResponse(ErrorCodeResponse):
    """The result of the push."""

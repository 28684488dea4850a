"""A private API: DescribeClients (20009), the clients of one node and the metrics that they push.

Times are milliseconds since then, by the clock of the responding node; -1 stands for never.
"""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorCodeResponse
from odradek.protocol.schema import (
    array,
    boolean,
    float64,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from odradek.protocol.types import Request, Uuid


@struct
class DescribeClientsRequest(Request["DescribeClientsResponse"]):
    """Describe the clients that are connected to this node, or push metrics to it (KIP-714).

    `client_ids` are those wanted, and `client_instance_ids` the instances; null both: all.
    """

    client_ids: list[str] | None = array(string, nullable_since=0, default=None)
    client_instance_ids: list[Uuid] | None = array(uuid, nullable_since=0, default=None)
    include_metrics: bool = boolean()


@struct
class DescribedClient:
    """The connections of one client id and software from one host; `connected_ms` of the oldest."""

    client_id: str = string()
    software_name: str = string()
    software_version: str = string()
    client_host: str = string()
    connection_count: int = int32()
    connected_ms: int = int64(default=-1)


@struct
class DescribedLabel:
    """An attribute of a metric, or of a client instance."""

    name: str = string()
    value: str = string()


@struct
class DescribedClientMetric:
    """The latest value. The name is the client's own; of deltas it is the sum."""

    name: str = string()
    labels: list[DescribedLabel] = array(DescribedLabel)
    is_counter: bool = boolean()
    value: float = float64()


@struct
class DescribedClientInstance:
    """A client instance that asks for telemetry subscriptions.

    `requested_metrics` are the prefixes of what it shall push every `push_interval_ms`; that is -1
    when it asks no more. `omitted_count` data points of its last push were over the limits.
    """

    client_instance_id: Uuid = uuid()
    client_id: str = string()
    software_name: str = string()
    software_version: str = string()
    client_host: str = string()
    requested_metrics: list[str] = array(string)
    push_interval_ms: int = int32(default=-1)
    pushed_ms: int = int64(default=-1)
    is_terminated: bool = boolean()
    series_count: int = int32()
    omitted_count: int = int32()
    attributes: list[DescribedLabel] = array(DescribedLabel)
    metrics: list[DescribedClientMetric] = array(DescribedClientMetric)


@struct
class DescribeClientsResponse(ErrorCodeResponse):
    """`omitted_count` clients and instances are over the limit of a response."""

    clients: list[DescribedClient] = array(DescribedClient)
    instances: list[DescribedClientInstance] = array(DescribedClientInstance)
    omitted_count: int = int32()

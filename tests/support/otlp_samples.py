"""OTLP payloads as clients push them, built with opentelemetry-proto."""

from collections.abc import Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def attributes(labels: Mapping[str, str]) -> list[KeyValue]:
    """Labels as attributes."""
    return [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in labels.items()]


def gauge(name: str, value: float, **labels: str) -> Metric:
    """A gauge with one point."""
    metric = Metric(name=name)
    metric.gauge.data_points.add(as_double=value, attributes=attributes(labels))
    return metric


def counter(
    name: str, value: int, temporality: "AggregationTemporality.ValueType" = DELTA, **labels: str
) -> Metric:
    """A monotonic sum with one point."""
    metric = Metric(name=name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = temporality
    metric.sum.data_points.append(
        NumberDataPoint(as_int=value, attributes=attributes(labels), time_unix_nano=1)
    )
    return metric


def payload(*metrics: Metric, **resource: str) -> bytes:
    """The metrics of one client, not compressed."""
    data = MetricsData(
        resource_metrics=[
            ResourceMetrics(
                resource=Resource(attributes=attributes(resource)),
                scope_metrics=[ScopeMetrics(metrics=metrics)],
            )
        ]
    )
    return bytes(data.SerializeToString())

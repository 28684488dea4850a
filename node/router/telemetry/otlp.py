"""Metrics in OTLP (opentelemetry-proto's MetricsData, as KIP-714 has it) to series with values.

The outer messages are walked here and only data points are decoded with opentelemetry-proto: it
holds the GIL, 200 ns for the smallest message, so the whole of a large push would hold the loop.
What a client may make a broker keep is bounded: points over the limits are counted and left out.

Names are as Prometheus has them: `org.apache.kafka.producer.record.send.rate` is
`odradek_client_producer_record_send_rate`. Histograms and summaries become several series, as
there. Values that are not a number are left out: so clients say that they have none.

The only module that imports opentelemetry-proto. It is imported with the first push, in a thread,
as that takes 50 ms.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from odradek.node.router.telemetry.client_metrics import (
    Labels,
    PushedMetrics,
    PushedSeries,
    TooManyPointsError,
)
from odradek.protocol.errors import ProtocolError

POINTS_MAX: Final = 20_000
"""Data points in one push."""
SERIES_MAX: Final = 1_000
"""Series of one client instance that are kept."""
FIELDS_MAX: Final = 200_000
"""Fields of messages around the data points, and data points."""
POINT_BYTES_MAX: Final = 4_096
"""A data point that is larger is left out: it has many exemplars."""
NAME_BYTES_MAX: Final = 200
LABELS_MAX: Final = 12
LABELS_LENGTH_MAX: Final = 400
"""Of names and values together: the messages to the supervisor have a limited size."""
RESOURCE_BYTES_MAX: Final = 4_096
NAME_PREFIX: Final = "odradek_client_"
CLIENT_LABELS: Final = ("client_id", "client_instance_id")
"""Which every series of a client has."""

_SLICE_COST: Final = 20_000
_POINT_COST: Final = 200
"""In bytes: decoding one takes about as long as so many of the smallest messages."""
_FIELDS_PER_SLICE: Final = 500
_RESERVED_LABELS: Final = frozenset({*CLIENT_LABELS, "process", "le", "quantile"})
_KAFKA_PREFIX: Final = "org.apache.kafka."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH_DELIMITED: Final = 2
_FIXED32: Final = 5


class _Field(NamedTuple):
    """A field of a message. `value` is that of a varint; of others, where the value begins."""

    number: int
    wire_type: int
    value: int
    end: int


class _MetricName(NamedTuple):
    source: str
    exported: str
    """Empty: too long, and left out."""


class _Point(NamedTuple):
    """One series of a data point."""

    suffix: str
    label: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool


def decode_metrics(payload: bytes) -> Generator[None, None, PushedMetrics]:
    """The metrics of a push; yields None after a slice of about a millisecond. ProtocolError if the
    payload is malformed, TooManyPointsError if there are too many data points."""
    decoder = _Decoder(payload)
    yield from decoder.run()
    return decoder.decoded


class _Decoder:
    def __init__(self, payload: bytes) -> None:
        self.decoded = PushedMetrics()
        self._payload = payload
        self._point_count = 0
        self._field_count = self._slice_cost = 0

    def run(self) -> Generator[None, None, None]:
        # MetricsData: resource_metrics = 1. ResourceMetrics: resource = 1, scope_metrics = 2.
        # ScopeMetrics: metrics = 2.
        for field_ in self._fields(0, len(self._payload)):
            if field_ is None:
                yield
            elif field_[:2] == (1, _LENGTH_DELIMITED):
                yield from self._read_resource_metrics(field_.value, field_.end)

    def _read_resource_metrics(self, start: int, end: int) -> Generator[None, None, None]:
        for field_ in self._fields(start, end):
            if field_ is None:
                yield
            elif field_[:2] == (1, _LENGTH_DELIMITED):
                self._read_resource(field_.value, field_.end)
                yield
            elif field_[:2] == (2, _LENGTH_DELIMITED):
                yield from self._read_scope_metrics(field_.value, field_.end)

    def _read_scope_metrics(self, start: int, end: int) -> Generator[None, None, None]:
        for field_ in self._fields(start, end):
            if field_ is None:
                yield
            elif field_[:2] == (2, _LENGTH_DELIMITED):
                yield from self._read_metric(field_.value, field_.end)

    def _fields(self, start: int, end: int) -> Iterator[_Field | None]:
        """The fields of a message, and None when the slice is over."""
        payload, at = self._payload, start
        while at < end:
            tag, at = _varint(payload, at, end)
            wire_type = tag & 7
            value = at
            match wire_type:
                case _ if wire_type == _VARINT:
                    value, at = _varint(payload, at, end)
                case _ if wire_type == _FIXED64:
                    at += 8
                case _ if wire_type == _LENGTH_DELIMITED:
                    length, value = _varint(payload, at, end)
                    at = value + length
                case _ if wire_type == _FIXED32:
                    at += 4
                case _:
                    raise ProtocolError(f"OTLP: wire type {wire_type}")
            if at > end:
                raise ProtocolError("OTLP: truncated")
            self._field_count += 1
            if self._field_count > FIELDS_MAX:
                raise TooManyPointsError(f"more than {FIELDS_MAX} fields")
            if not self._field_count % _FIELDS_PER_SLICE:
                yield None
            yield _Field(tag >> 3, wire_type, value, at)

    def _read_resource(self, start: int, end: int) -> None:
        if end - start > RESOURCE_BYTES_MAX:
            return
        resource = _parsed(Resource.FromString, self._payload[start:end])
        assert isinstance(resource, Resource)
        self.decoded.resource = _labels(resource.attributes) or ()

    def _read_metric(self, start: int, end: int) -> Generator[None, None, None]:
        # Metric: name = 1, gauge = 5, sum = 7, histogram = 9, exponential_histogram = 10,
        # summary = 11.
        name = _MetricName("", "")
        points: _Field | None = None
        for field_ in self._fields(start, end):
            if field_ is None:
                yield
            elif field_.wire_type != _LENGTH_DELIMITED:
                continue
            elif field_.number == 1 and field_.end - field_.value <= NAME_BYTES_MAX:
                name = _metric_name(self._payload[field_.value : field_.end])
            elif field_.number in _READERS:
                points = field_
        if points is not None:
            yield from self._read_points(name, points)

    def _read_points(self, name: _MetricName, points: _Field) -> Generator[None, None, None]:
        # Of all kinds: data_points = 1, aggregation_temporality = 2; of a sum: is_monotonic = 3.
        is_delta = is_monotonic = False
        for field_ in self._fields(points.value, points.end):
            if field_ is None:
                yield
            elif field_[:2] == (2, _VARINT):
                is_delta = field_.value == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
            elif field_[:2] == (3, _VARINT):
                is_monotonic = bool(field_.value)
        read = _READERS[points.number]
        for field_ in self._fields(points.value, points.end):
            if field_ is None:
                yield
            elif field_[:2] == (1, _LENGTH_DELIMITED):
                self._point_count += 1
                if self._point_count > POINTS_MAX:
                    raise TooManyPointsError(f"more than {POINTS_MAX} data points")
                self._slice_cost += _POINT_COST + field_.end - field_.value
                if self._slice_cost > _SLICE_COST:
                    self._slice_cost = 0
                    yield
                if self._is_kept(name, field_.end - field_.value):
                    data = self._payload[field_.value : field_.end]
                    self._keep(name, *read(data, is_monotonic), is_delta=is_delta)
                else:
                    self.decoded.omitted_count += 1

    def _is_kept(self, name: _MetricName, size: int) -> bool:
        series_count = len(self.decoded.values) + len(self.decoded.deltas)
        return bool(name.exported) and size <= POINT_BYTES_MAX and series_count < SERIES_MAX

    def _keep(
        self,
        name: _MetricName,
        attributes: Iterable[KeyValue],
        points: Iterable[_Point],
        *,
        is_delta: bool,
    ) -> None:
        labels = _labels(attributes)
        if labels is None:
            self.decoded.omitted_count += 1
            return
        for suffix, label, value, is_counter in points:
            if math.isnan(value):
                continue
            kind = "counter" if is_counter else "gauge"
            key = PushedSeries(name.exported + suffix, labels + label, kind, name.source + suffix)
            if is_delta:
                self.decoded.deltas[key] = self.decoded.deltas.get(key, 0.0) + value
            else:
                self.decoded.values[key] = value


def _metric_name(name: bytes) -> _MetricName:
    source = "".join(c if c.isprintable() else "?" for c in name.decode(errors="replace"))
    exported = _NOT_IN_NAMES.sub("_", source.removeprefix(_KAFKA_PREFIX))
    return _MetricName(source, NAME_PREFIX + exported if exported else "")


_Reader: TypeAlias = Callable[[bytes, bool], tuple[Iterable[KeyValue], Iterable[_Point]]]


def _read_number(data: bytes, is_monotonic: bool) -> tuple[Iterable[KeyValue], Iterable[_Point]]:
    point = _parsed(NumberDataPoint.FromString, data)
    assert isinstance(point, NumberDataPoint)
    match point.WhichOneof("value"):
        case "as_double":
            value = point.as_double
        case "as_int":
            value = float(point.as_int)
        case _:
            return (), ()
    return point.attributes, (_Point("", (), value, is_monotonic),)


def _read_histogram(data: bytes, _is_sum: bool) -> tuple[Iterable[KeyValue], Iterable[_Point]]:
    point = _parsed(HistogramDataPoint.FromString, data)
    assert isinstance(point, HistogramDataPoint)
    points = [_Point("_count", (), point.count, True), _Point("_sum", (), point.sum, True)]
    if len(point.bucket_counts) == len(point.explicit_bounds) + 1:
        below = 0
        bounds = [*(f"{bound:.17g}" for bound in point.explicit_bounds), "+Inf"]
        for bound, count in zip(bounds, point.bucket_counts, strict=True):
            below += count
            points.append(_Point("_bucket", (("le", bound),), below, True))
    return point.attributes, points


def _read_exponential(data: bytes, _is_sum: bool) -> tuple[Iterable[KeyValue], Iterable[_Point]]:
    point = _parsed(ExponentialHistogramDataPoint.FromString, data)
    assert isinstance(point, ExponentialHistogramDataPoint)
    return point.attributes, (
        _Point("_count", (), point.count, True),
        _Point("_sum", (), point.sum, True),
    )


def _read_summary(data: bytes, _is_sum: bool) -> tuple[Iterable[KeyValue], Iterable[_Point]]:
    point = _parsed(SummaryDataPoint.FromString, data)
    assert isinstance(point, SummaryDataPoint)
    return point.attributes, (
        _Point("_count", (), point.count, True),
        _Point("_sum", (), point.sum, True),
        *(
            _Point("", (("quantile", f"{each.quantile:.17g}"),), each.value, False)
            for each in point.quantile_values
        ),
    )


_READERS: Final[Mapping[int, _Reader]] = {
    5: _read_number,
    7: _read_number,
    9: _read_histogram,
    10: _read_exponential,
    11: _read_summary,
}


def _parsed(parse: Callable[[bytes], Message], data: bytes) -> Message:
    try:
        return parse(data)
    except DecodeError as error:
        raise ProtocolError(f"OTLP: {error}") from None


def _labels(attributes: Iterable[KeyValue]) -> Labels | None:
    """The attributes as labels, sorted; None if they are too many or too long."""
    labels: dict[str, str] = {}
    length = 0
    for attribute in attributes:
        name = _NOT_IN_NAMES.sub("_", attribute.key)
        if not name or name[0].isdigit() or name in _RESERVED_LABELS or name.startswith("__"):
            name = f"attribute_{name}"
        text = _text_of(attribute.value)
        length += len(name) + len(text.encode())
        if len(labels) == LABELS_MAX or length > LABELS_LENGTH_MAX:
            return None
        labels[name] = text
    return tuple(sorted(labels.items()))


def _text_of(value: AnyValue) -> str:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return f"{value.double_value:.17g}"
        case _:
            return ""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtocolError("OTLP: malformed number")

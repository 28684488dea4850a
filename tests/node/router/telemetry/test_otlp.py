"""From OTLP to series: against opentelemetry-proto's own encoder, and against hostile bytes."""

import gc
import math
import random
import time

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData

from odradek.node.router.telemetry import otlp
from odradek.node.router.telemetry.client_metrics import (
    PushedMetrics,
    PushedSeries,
    TooManyPointsError,
)
from odradek.node.router.telemetry.otlp import decode_metrics
from odradek.protocol.errors import ProtocolError
from tests.support.otlp_samples import CUMULATIVE, attributes, counter, gauge, payload

SLICE_S_MAX = 0.020
"""What the house allows one request to hold the loop."""


def decode(data: bytes) -> PushedMetrics:
    slices = decode_metrics(data)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            pushed: PushedMetrics = stop.value
            return pushed


def field(number: int, content: bytes) -> bytes:
    """A field of a message in protobuf's format."""
    size = len(content)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def in_metric(content: bytes) -> bytes:
    """A payload whose one metric has this content."""
    return field(1, field(2, field(2, content)))


def test_gauges_replace_and_delta_counters_add() -> None:
    pushed = decode(
        payload(
            gauge("org.apache.kafka.consumer.poll.idle.ratio.avg", 0.5),
            counter("org.apache.kafka.producer.record.send.total", 7, node_id="1"),
            counter("org.apache.kafka.producer.record.error.total", 3, CUMULATIVE),
        )
    )
    assert pushed.values == {
        PushedSeries(
            "odradek_client_consumer_poll_idle_ratio_avg",
            (),
            "gauge",
            "org.apache.kafka.consumer.poll.idle.ratio.avg",
        ): 0.5,
        PushedSeries(
            "odradek_client_producer_record_error_total",
            (),
            "counter",
            "org.apache.kafka.producer.record.error.total",
        ): 3.0,
    }
    [(series, value)] = pushed.deltas.items()
    assert (series.labels, series.kind, value) == ((("node_id", "1"),), "counter", 7.0)
    assert pushed.omitted_count == 0


def test_the_attributes_of_the_client_are_read() -> None:
    pushed = decode(payload(gauge("m", 1.0), group_id="g", client_rack="r"))
    assert pushed.resource == (("client_rack", "r"), ("group_id", "g"))


def test_a_value_that_is_not_a_number_is_left_out() -> None:
    pushed = decode(payload(gauge("a", math.nan), gauge("b", math.inf)))
    assert [series.name for series in pushed.values] == ["odradek_client_b"]
    assert pushed.omitted_count == 0


def test_names_and_labels_are_made_valid() -> None:
    strange = gauge("my metric-\n€", 1.0, **{"a.b": "x", "le": "1", "2": "y", "__n": ""})
    [series] = decode(payload(strange)).values
    assert series.name == "odradek_client_my_metric___"
    assert series.source_name == "my metric-?€"
    assert dict(series.labels) == {
        "a_b": "x",
        "attribute_le": "1",
        "attribute_2": "y",
        "attribute___n": "",
    }


def test_labels_of_all_types_are_texts() -> None:
    metric = gauge("m", 1.0)
    metric.gauge.data_points[0].attributes.extend(
        [
            KeyValue(key="b", value=AnyValue(bool_value=True)),
            KeyValue(key="i", value=AnyValue(int_value=-5)),
            KeyValue(key="d", value=AnyValue(double_value=0.5)),
            KeyValue(key="n"),
        ]
    )
    [series] = decode(payload(metric)).values
    assert dict(series.labels) == {"b": "true", "i": "-5", "d": "0.5", "n": ""}


def test_histograms_and_summaries_become_several_series() -> None:
    histogram, exponential, summary = Metric(name="h"), Metric(name="e"), Metric(name="s")
    histogram.histogram.aggregation_temporality = CUMULATIVE
    histogram.histogram.data_points.add(
        count=6, sum=9.5, bucket_counts=[1, 2, 3], explicit_bounds=[0.5, 10.0]
    )
    exponential.exponential_histogram.data_points.add(count=4, sum=2.0)
    point = summary.summary.data_points.add(count=2, sum=3.0, attributes=attributes({"t": "x"}))
    point.quantile_values.add(quantile=0.99, value=1.5)
    values = decode(payload(histogram, exponential, summary)).values
    told = {
        (each.name.removeprefix("odradek_client_"), each.labels): values[each] for each in values
    }
    of_topic = (("t", "x"),)
    assert told == {
        ("h_count", ()): 6.0,
        ("h_sum", ()): 9.5,
        ("h_bucket", (("le", "0.5"),)): 1.0,
        ("h_bucket", (("le", "10"),)): 3.0,
        ("h_bucket", (("le", "+Inf"),)): 6.0,
        ("e_count", ()): 4.0,
        ("e_sum", ()): 2.0,
        ("s_count", of_topic): 2.0,
        ("s_sum", of_topic): 3.0,
        ("s", (*of_topic, ("quantile", "0.98999999999999999"))): 1.5,
    }


def test_fields_that_are_not_known_are_skipped() -> None:
    known = payload(gauge("m", 1.0))
    unknown = b"\x78\x05" + b"\x79" + bytes(8) + field(15, b"text") + b"\x7d" + bytes(4)
    assert decode(unknown + known + unknown).values == decode(known).values
    assert decode(b"") == PushedMetrics()


def test_series_over_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "SERIES_MAX", 2)
    pushed = decode(payload(*(counter(f"m{i}", 1) for i in range(5))))
    assert (len(pushed.deltas), pushed.omitted_count) == (2, 3)


@pytest.mark.parametrize(
    "metric",
    [
        gauge("x" * (otlp.NAME_BYTES_MAX + 1), 1.0),
        gauge("", 1.0),
        gauge("m", 1.0, **{f"label{i}": "" for i in range(otlp.LABELS_MAX + 1)}),
        gauge("m", 1.0, label="v" * otlp.LABELS_LENGTH_MAX),
        gauge("m", 1.0, label="v" * otlp.POINT_BYTES_MAX),
    ],
    ids=["name", "no name", "labels", "text", "point"],
)
def test_what_is_too_long_is_counted(metric: Metric) -> None:
    pushed = decode(payload(metric, gauge("kept", 1.0)))
    assert [series.name for series in pushed.values] == ["odradek_client_kept"]
    assert pushed.omitted_count == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 50,
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0b",
        b"\x09\x00",
        in_metric(field(1, b"m") + field(5, field(1, b"\xff\xff"))),
        field(1, field(1, b"\x0a\xff")),
    ],
    ids=["number", "no length", "truncated", "group", "fixed", "point", "resource"],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="OTLP"):
        decode(data)


def test_random_damage_is_refused_or_read() -> None:
    """Whatever a stranger sends: an answer or ProtocolError, as opentelemetry-proto has it."""
    generator = random.Random(714)
    good = payload(*(counter(f"metric.{i}", i, topic=f"t{i}") for i in range(20)), group_id="g")
    refused = 0
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            decode(bytes(data[: generator.randint(0, len(data))]))
        except ProtocolError:
            refused += 1
    assert 500 < refused < 3_000


EMPTY_POINTS = in_metric(field(1, b"m") + field(5, field(1, b"") * (otlp.POINTS_MAX + 1)))
MANY_FIELDS = b"\x10\x00" * (otlp.FIELDS_MAX + 1)
LARGE_RESOURCES = field(1, field(1, field(1, b"") * (otlp.RESOURCE_BYTES_MAX // 2))) * 100
LARGE_POINTS = in_metric(
    field(1, b"m") + field(5, field(1, field(7, b"") * (otlp.POINT_BYTES_MAX // 2)) * 250)
)


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (EMPTY_POINTS, True),
        (MANY_FIELDS, True),
        (LARGE_RESOURCES, False),
        (LARGE_POINTS, False),
        (payload(*(counter(f"metric.{i}", 1, topic=f"topic-{i}") for i in range(10_000))), False),
    ],
    ids=["points", "fields", "resources", "large points", "metrics"],
)
def test_no_slice_holds_the_loop(data: bytes, is_refused: bool) -> None:
    """1 MiB of the smallest messages would hold it for 200 ms if it were parsed as a whole."""
    runs = []
    for _ in range(3):
        times, refusal = slices_of(data)
        assert (refusal is not None) is is_refused
        runs.append(times)
    # A virtual machine that stands still takes its thread's time: not in the same slice each time.
    longest_s = max(min(times) for times in zip(*runs, strict=True))
    assert longest_s < SLICE_S_MAX


def slices_of(data: bytes) -> tuple[list[float], TooManyPointsError | None]:
    """The seconds of each slice of decoding, and what ended it."""
    slices = decode_metrics(data)
    times: list[float] = []
    gc.disable()  # a collection looks at what all tests before have left
    try:
        while True:
            began = time.thread_time()
            try:
                next(slices)
            except StopIteration:
                return times, None
            except TooManyPointsError as error:
                return times, error
            finally:
                times.append(time.thread_time() - began)
    finally:
        gc.enable()


def test_what_is_decoded_is_what_opentelemetry_proto_reads() -> None:
    data = payload(*(counter(f"m{i}", i, topic=str(i)) for i in range(50)))
    [resource_metrics] = MetricsData.FromString(data).resource_metrics
    read = {
        metric.name: float(metric.sum.data_points[0].as_int)
        for metric in resource_metrics.scope_metrics[0].metrics
    }
    assert {each.source_name: value for each, value in decode(data).deltas.items()} == read

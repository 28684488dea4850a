"""Metrics are read when they are collected, and have no more series than their bound allows."""

import math
from collections.abc import Iterator

import pytest

from odradek.node.metrics.family import MetricFamily, MetricKind, SeriesBound
from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.metrics.registry import (
    LINES_OF_A_PART,
    FamilyLines,
    Metrics,
    Sample,
    number_text,
)
from tests.support.log_lines import log_lines


def family(name: str, *labels: str, bound: SeriesBound = SeriesBound.FIXED) -> MetricFamily:
    kind = MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE
    return MetricFamily(
        name=name, kind=kind, process="router", help="Help", labels=labels, bound=bound
    )


DECLARED = {
    each.name: each
    for each in (
        family("requests_total"),
        family("queued", "queue"),
        family("ready", "process"),
        family("lag", "group", "topic"),
        family("summed", "topic", bound=SeriesBound.SUM),
        family("lag_sum", "group", "topic", bound=SeriesBound.SUM),
        family("largest", "topic", bound=SeriesBound.MAX),
        family("omitted", "topic", bound=SeriesBound.OMITTED),
        MetricFamily(
            name="time_seconds",
            kind=MetricKind.HISTOGRAM,
            process="router",
            help="Time",
            labels=("stage",),
        ),
    )
}


def metrics() -> Metrics:
    return Metrics("router-0", DECLARED)


def text(of: Metrics) -> list[str]:
    return "".join(part.lines for part in of.collect()).splitlines()


def test_metrics_are_read_when_they_are_collected() -> None:
    of = metrics()
    requests = 0
    of.read("requests_total", lambda: requests)
    of.read("queued", lambda: {"a": 1.5, "b": True})
    requests = 5
    assert list(of.collect()) == [
        FamilyLines("requests_total", "counter", "Help", 'requests_total{process="router-0"} 5\n'),
        FamilyLines(
            "queued",
            "gauge",
            "Help",
            'queued{process="router-0",queue="a"} 1.5\nqueued{process="router-0",queue="b"} 1\n',
        ),
    ]
    requests = 6
    assert of.values() == {"requests_total": 6, "queued": 2.5}
    assert of.names == {"requests_total", "queued"}


def test_a_family_that_is_not_declared_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        metrics().read("unknown", lambda: 1)


def test_a_family_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Iterator[tuple[str, float]]:
        yield "a", 1.0
        raise OSError("the folder has gone")

    of = metrics()
    of.read("queued", fail)
    of.read("requests_total", lambda: 3)
    assert text(of) == ['requests_total{process="router-0"} 3']
    [line] = log_lines(caplog)
    assert line.startswith("a metric cannot be read metric=queued\nTraceback")


def test_several_labels_are_a_tuple_and_an_empty_one_is_none() -> None:
    of = metrics()
    of.read("lag", lambda: {("g", "t"): 1, ("h", ""): 2})
    assert text(of) == [
        'lag{process="router-0",group="g",topic="t"} 1',
        'lag{process="router-0",group="h"} 2',
    ]


def test_values_may_come_one_by_one() -> None:
    of = metrics()
    of.read("queued", lambda: ((str(number), number) for number in range(LINES_OF_A_PART + 1)))
    parts = list(of.collect())
    assert [part.lines.count("\n") for part in parts] == [LINES_OF_A_PART, 1]


def test_a_family_about_other_processes_has_their_label_alone() -> None:
    of = metrics()
    of.read("ready", lambda: {"worker-0": True})
    assert text(of) == ['ready{process="worker-0"} 1']


def test_labels_are_escaped() -> None:
    of = metrics()
    of.read("queued", lambda: {'a"\\\n': 1})
    assert text(of) == ['queued{process="router-0",queue="a\\"\\\\\\n"} 1']


@pytest.mark.parametrize(
    ("name", "other"), [("summed", ["_other", 70]), ("largest", ["_other", 40]), ("omitted", [])]
)
def test_series_above_the_limit_are_one(name: str, other: list[object]) -> None:
    of = metrics()
    of.series_max = 2
    of.read(name, lambda: {"a": 10, "b": 20, "c": 30, "d": 40})
    expected = [f'{name}{{process="router-0",topic="{topic}"}}' for topic in ("a", "b")]
    lines = text(of)
    assert [line.rpartition(" ")[0] for line in lines[:2]] == expected
    assert lines[2:] == (
        [f'{name}{{process="router-0",topic="{other[0]}"}} {other[1]}'] if other else []
    )


def test_a_series_keeps_its_name_as_long_as_it_is_there() -> None:
    of = metrics()
    of.series_max = 2
    values = {"a": 1, "b": 2}
    of.read("summed", lambda: values)

    def named() -> set[str]:
        return {line.partition('topic="')[2].partition('"')[0] for line in text(of)}

    assert named() == {"a", "b"}
    values = {"c": 3, "b": 2, "a": 1}
    assert named() == {"a", "b", "_other"}
    values = {"d": 4, "b": 2}
    assert named() == {"b", "_other"}
    assert named() == {"b", "d"}, "the room of a series that has gone"
    of.series_max = 1
    text(of)
    assert len(named()) == 2


@pytest.mark.parametrize("name", ["summed", "lag_sum"])
def test_what_a_reading_has_added_up_itself_joins_the_others(name: str) -> None:
    of = metrics()
    of.series_max = 4

    def key(text: str) -> str | tuple[str, ...]:
        return text if name == "summed" else (text, text)

    values = {key("a"): 1, key("_other"): 5}
    of.read(name, lambda: list(values.items()))
    assert [line.rpartition(" ")[2] for line in text(of)] == ["1", "5"]
    values = {key(each): 1 for each in "abcd"} | {key("_other"): 5}
    assert [line.rpartition(" ")[2] for line in text(of)] == ["1", "1", "1", "1", "5"]
    values = {key("e"): 2, key("_other"): 5}
    lines = text(of)
    assert len(lines) == 1
    assert lines[0].endswith("} 7"), "one series, not two of the same name"
    assert [line.rpartition(" ")[2] for line in text(of)] == ["2", "5"]


def test_a_histogram_has_buckets_sum_and_count() -> None:
    of, histogram = metrics(), DurationHistogram()
    for duration_ns in (10, 1_000_000, 10**12):
        histogram.observe(duration_ns)
    of.read_histogram("time_seconds", lambda: [(("send",), histogram)])
    lines = text(of)
    assert lines[0] == ('time_seconds_bucket{process="router-0",stage="send",le="6.5536e-05"} 1')
    assert lines[-3:] == [
        'time_seconds_bucket{process="router-0",stage="send",le="+Inf"} 3',
        'time_seconds_sum{process="router-0",stage="send"} 1000.00100001',
        'time_seconds_count{process="router-0",stage="send"} 3',
    ]


def test_families_that_clients_push_have_their_own_names() -> None:
    of = metrics()
    of.samples(lambda: [Sample("pushed", "gauge", "By a client", 5.0, (("client_id", "c"),))])
    assert list(of.collect()) == [
        FamilyLines(
            "pushed", "gauge", "By a client", 'pushed{process="router-0",client_id="c"} 5.0\n'
        )
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (2**63, "9223372036854775808"),
        (True, "1"),
        (0.1, "0.1"),
        (2.0, "2.0"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_read_back_the_same(value: float, expected: str) -> None:
    assert number_text(value) == expected

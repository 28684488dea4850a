"""Both formats are what Prometheus' own client library reads, and mean the same to it."""

from collections.abc import Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from odradek.node.metrics.exposition import exposition, prefers_openmetrics
from odradek.node.metrics.family import MetricFamily, MetricKind
from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.metrics.registry import FamilyLines, Metrics, Sample

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def parse_openmetrics(text: str) -> Iterable[Metric]:
    parse: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families
    return parse(text)


def parts() -> list[FamilyLines]:
    def declared(name: str, kind: MetricKind, *labels: str) -> MetricFamily:
        return MetricFamily(name=name, kind=kind, process="router", help="Help", labels=labels)

    families = (
        declared("a_bytes_total", MetricKind.COUNTER),
        declared("b_build_info", MetricKind.INFO, "version"),
        declared("c", MetricKind.GAUGE, "text"),
        declared("d_seconds", MetricKind.HISTOGRAM, "stage"),
    )
    histogram = DurationHistogram()
    histogram.observe(10**9)
    found: list[FamilyLines] = []
    for process in ("router-0", "router-1"):
        metrics = Metrics(process, {each.name: each for each in families})
        metrics.read("a_bytes_total", lambda: 2**53)
        metrics.read("c", lambda: {'q"\\\n}': 0.25})
        metrics.read_histogram("d_seconds", lambda: [(("send",), histogram)])
        if process == "router-0":
            metrics.read("b_build_info", lambda: {"1.2": 1})
        found += metrics.collect()
    return found


def pushed(name: str, kind: str) -> list[FamilyLines]:
    metrics = Metrics("router-0", {})
    metrics.samples(lambda: [Sample(name, kind, "Pushed", 1.0)])
    return list(metrics.collect())


def test_a_family_of_several_processes_has_one_head() -> None:
    text = exposition(parts())
    assert text.startswith(
        "# HELP a_bytes_total Help\n# TYPE a_bytes_total counter\n"
        'a_bytes_total{process="router-0"} 9007199254740992\n'
        'a_bytes_total{process="router-1"} 9007199254740992\n'
        "# HELP b_build_info Help\n# TYPE b_build_info gauge\n"
    )
    assert text.count("# TYPE") == 4
    assert not text.endswith("# EOF\n")


def test_openmetrics_has_the_unit_and_an_end() -> None:
    text = exposition(parts(), is_openmetrics=True)
    assert text.startswith(
        "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Help\n"
        'a_bytes_total{process="router-0"} 9007199254740992\n'
    )
    assert "# TYPE b_build info\n" in text
    assert text.endswith("# EOF\n")


def test_both_formats_mean_the_same() -> None:
    """Judged by the parsers of prometheus-client; that of OpenMetrics refuses every deviation."""

    def series(families: Iterable[Metric]) -> dict[object, float]:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    from_text = series(parse_text(exposition(parts())))
    from_openmetrics = series(parse_openmetrics(exposition(parts(), is_openmetrics=True)))
    assert from_text == from_openmetrics
    assert from_text["c", (("process", "router-0"), ("text", 'q"\\\n}'))] == 0.25


@pytest.mark.parametrize(
    "names",
    [
        (("x", "counter"),),
        (("x_total", "counter"), ("x", "gauge")),
        (("x_total", "gauge"), ("x", "counter")),
        (("x_total", "counter"), ("x_total", "gauge")),
    ],
)
def test_whatever_clients_push_is_openmetrics(names: tuple[tuple[str, str], ...]) -> None:
    found = [part for name, kind in names for part in pushed(name, kind)]
    # A second sample of one series is its client's doing, and is not sent.
    unique = {(part.name): part for part in reversed(found)}
    text = exposition(unique.values(), is_openmetrics=True)
    assert {family.name for family in parse_openmetrics(text)}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("text/plain;q=0.5, Application/OpenMetrics-Text; version=1.0.0; q=0.7", True),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        (PROMETHEUS, True),
    ],
)
def test_the_accept_header_chooses(accept: str, expected: bool) -> None:
    assert prefers_openmetrics(accept) is expected

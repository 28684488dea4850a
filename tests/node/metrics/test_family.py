"""Names of families in OpenMetrics, and their units."""

from odradek.node.metrics.family import MetricFamily, MetricKind, base_name, unit_of


def test_the_suffix_of_a_kind_is_no_part_of_the_base_name() -> None:
    assert base_name("odradek_received_bytes_total", "counter") == "odradek_received_bytes"
    assert base_name("odradek_build_info", "info") == "odradek_build"
    assert base_name("odradek_lag_total", "gauge") == "odradek_lag_total"
    family = MetricFamily(name="a_total", kind=MetricKind.COUNTER, process="router", help="A")
    assert family.base_name == "a"


def test_the_unit_is_the_last_word() -> None:
    assert unit_of("odradek_received_bytes") == "bytes"
    assert unit_of("odradek_lag_seconds") == "seconds"
    assert unit_of("odradek_partitions") == ""
    assert unit_of("odradek_bytes_of_it") == ""

"""The keys of client metrics subscriptions."""

import pytest

from odradek.cluster.metadata.client_metrics_settings import (
    ClientMetricsSettings,
    interval_error,
    match_patterns,
)
from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.config_tables import CLIENT_METRICS_CONFIGS


def test_the_keys_and_defaults_are_kafkas() -> None:
    assert {name: each.default for name, each in CLIENT_METRICS_CONFIGS.items()} == {
        "interval.ms": "300000",
        "match": "",
        "metrics": "",
    }
    assert ClientMetricsSettings() == ClientMetricsSettings(
        metrics=(), interval_ms=300_000, match=()
    )


@pytest.mark.parametrize(
    ("items", "patterns"),
    [
        ((), ()),
        (("client_id=a",), (("client_id", "a"),)),
        (
            ("client_id = a ", "client_source_port=9.*"),
            (("client_id", "a"), ("client_source_port", "9.*")),
        ),
        (("client_id=a=",), (("client_id", "a"),)),
        (("client_id=a", "client_id=b"), (("client_id", "b"),)),
    ],
)
def test_patterns_are_pairs(items: tuple[str, ...], patterns: tuple[tuple[str, str], ...]) -> None:
    assert match_patterns(items) == patterns


@pytest.mark.parametrize(
    "item", ["10", "client_id=a=b", "nope=1", "client_id=", "=x", "client_id==", "CLIENT_ID=a"]
)
def test_what_is_no_pair_is_refused_in_kafkas_words(item: str) -> None:
    # As Kafka 4.3.1 answers IncrementalAlterConfigs of the key `match`.
    with pytest.raises(ConfigError, match=r"^Illegal client matching pattern: ") as refused:
        CLIENT_METRICS_CONFIGS["match"].parse(f"client_id=fine,{item}")
    assert str(refused.value).endswith(f": {item}")


@pytest.mark.parametrize(
    ("interval_ms", "is_valid"),
    [(99, False), (100, True), (3_600_000, True), (3_600_001, False)],
)
def test_the_interval_is_bounded(interval_ms: int, is_valid: bool) -> None:
    assert (interval_error(interval_ms) is None) is is_valid

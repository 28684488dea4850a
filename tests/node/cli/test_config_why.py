"""The sentences that say why a setting has its value."""

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.node.cli.config_why import explanation, layers
from odradek.protocol.messages.configs import (
    ConfigSourcesOfKey,
    ConfigSourceValue,
    DescribeConfigSourcesResponse,
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)


def entry(
    name: str,
    *synonyms: tuple[str, str | None, int],
    is_sensitive: bool = False,
    read_only: bool = False,
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=synonyms[0][1] if synonyms else None,
        synonyms=[DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in synonyms],
        is_sensitive=is_sensitive,
        read_only=read_only,
    )


def sources(**keys: list[tuple[str, str]]) -> DescribeConfigSourcesResponse:
    return DescribeConfigSourcesResponse(
        keys=[
            ConfigSourcesOfKey(
                name=key.replace("_", "."),
                values=[ConfigSourceValue(value=v, origin=o) for v, o in values],
            )
            for key, values in keys.items()
        ]
    )


WORKERS = entry("workers", ("workers", "4", ConfigSource.DYNAMIC_BROKER), ("workers", "3", 4))


def test_all_that_a_broker_was_started_with_is_told_with_its_origin() -> None:
    known = sources(workers=[("3", "environment variable ODRADEK_WORKERS"), ("2", "f line 1")])
    rows = layers(WORKERS, "broker 1", 1, known)
    assert [(row["value"], row["origin"], row["in_force"]) for row in rows] == [
        ("4", "set on broker 1 at run time", True),
        ("3", "environment variable ODRADEK_WORKERS", False),
        ("2", "f line 1", False),
    ]
    assert explanation(WORKERS, "broker 1", rows, known) == [
        "workers of broker 1 is 4: set on broker 1 at run time.",
        "It wins over 3 (environment variable ODRADEK_WORKERS); 2 (f line 1).",
    ]


def test_a_broker_of_kafka_does_not_say_where_its_configuration_is_from() -> None:
    rows = layers(WORKERS, "broker 1", 1, None)
    assert rows[1]["origin"] == "broker 1 was started with it"


def test_secrets_are_hidden() -> None:
    secret = entry("ssl.key.password", ("ssl.key.password", None, 4), is_sensitive=True)
    rows = layers(secret, "broker 1", 1, sources(ssl_key_password=[("[hidden]", "f line 1")]))
    assert [row["value"] for row in rows] == ["(hidden)"]
    assert explanation(secret, "broker 1", rows, None)[0] == (
        "ssl.key.password of broker 1 is (hidden): f line 1."
    )


def test_what_waits_for_a_restart_and_a_refused_file_are_told() -> None:
    folder = entry("run", ("run", "/run/odradek", 4), read_only=True)
    known = DescribeConfigSourcesResponse(restart_keys=["run"], file_problem="bad")
    said = explanation(folder, "broker 1", layers(folder, "broker 1", 1, known), known)
    assert said[1:] == [
        "It cannot be changed through the cluster while the broker runs.",
        "The configuration file has another value, which needs a restart: all processes of the node"
        " have it open, and find each other there.",
        "The configuration file, as it is now, is refused: bad.",
    ]


def test_a_setting_that_the_broker_does_not_have_is_told() -> None:
    arena = entry("arena.bytes", ("arena.bytes", "1", 2))
    known = DescribeConfigSourcesResponse(settings_problem="too large")
    said = explanation(arena, "broker 1", layers(arena, "broker 1", 1, known), known)
    assert said[-1] == "What is set for the broker through the cluster is not in effect: too large."
    other = entry("num.partitions", ("num.partitions", "1", 2))
    assert "too large" not in " ".join(explanation(other, "broker 1", [], known))


def test_a_key_that_nothing_sets() -> None:
    rack = entry("broker.rack")
    rows = layers(rack, "broker 1", 1, None)
    assert explanation(rack, "broker 1", rows, None) == [
        "broker.rack of broker 1 is not set and has no default."
    ]

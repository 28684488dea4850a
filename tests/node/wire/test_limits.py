"""Defaults as in Kafka, and the counting of connections."""

from odradek.node.wire.limits import (
    REFUSAL_WINDOW_S,
    ConnectionQuotas,
    RefusalLog,
    WireSettings,
)


def test_the_defaults_are_those_of_kafka() -> None:
    settings = WireSettings()
    assert settings.request_bytes_max == 100 * 1024 * 1024
    assert settings.connections_idle_ms_max == 10 * 60 * 1000
    assert settings.connections_max == settings.connections_per_ip_max == 2**31 - 1


def test_a_closed_connection_is_not_counted() -> None:
    settings = WireSettings(connections_max=3, connections_per_ip_max=2)
    connection_quotas = ConnectionQuotas(settings)
    assert (
        connection_quotas.admit("a")
        is connection_quotas.admit("a")
        is connection_quotas.admit("b")
        is None
    )
    assert connection_quotas.admit("c") == "max.connections is 3"
    connection_quotas.leave("b")
    assert connection_quotas.admit("a") == "max.connections.per.ip is 2 for a"
    assert connection_quotas.count_of_host == {"a": 2}


def test_limits_may_change_while_there_are_connections() -> None:
    settings = WireSettings(connections_per_ip_max=0)
    connection_quotas = ConnectionQuotas(settings)
    assert connection_quotas.admit("a") is not None
    settings.connections_per_ip_max_overrides["a"] = 1
    assert connection_quotas.admit("a") is None
    settings.connections_max = 1
    assert connection_quotas.admit("b") == "max.connections is 1"


def test_a_reason_is_logged_once_a_minute_and_address() -> None:
    log = RefusalLog()
    assert log.line("a", "TLS", 5.0) == "TLS"
    assert [log.line("a", "TLS", 5.0 + second) for second in range(59)] == [None] * 59
    assert log.line("b", "TLS", 6.0) == "TLS"
    assert log.line("a", "HTTP", 6.0) == "HTTP"
    assert log.line("a", "TLS", 5.0 + REFUSAL_WINDOW_S) == "TLS (59 more times since the last line)"
    assert log.line("a", "TLS", 5.0 + 2 * REFUSAL_WINDOW_S) == "TLS"


def test_many_addresses_take_bounded_memory() -> None:
    log = RefusalLog()
    lines = [log.line(f"host-{number}", "TLS", 0.0) for number in range(2_000)]
    assert sum(line is not None for line in lines) == 1_000
    assert log.line("another", "TLS", REFUSAL_WINDOW_S) == "TLS", "the old ones are forgotten"

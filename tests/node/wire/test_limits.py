"""Defaults as in Kafka, and the counting of connections."""

from odradek.node.wire.limits import (
    UNLIMITED,
    ConnectionQuotas,
    ListenerLimits,
    WireSettings,
)


def test_the_defaults_are_those_of_kafka() -> None:
    settings = WireSettings()
    assert settings.request_bytes_max == 100 * 1024 * 1024
    assert settings.connections_idle_ms_max == 10 * 60 * 1000
    assert settings.connections_max == settings.connections_per_ip_max == 2**31 - 1


def test_connections_of_an_address_are_limited_until_they_leave() -> None:
    settings = WireSettings(connections_per_ip_max=2)
    quotas = ConnectionQuotas(settings)
    assert quotas.admit("a") is quotas.admit("a") is quotas.admit("b") is None
    assert quotas.admit("a") == "max.connections.per.ip is 2 for a"
    quotas.leave("b")
    assert quotas.count_of_host == {"a": 2}
    settings.connections_per_ip_max_overrides["a"] = 3
    assert quotas.admit("a") is None


def test_slots_are_those_of_the_broker_and_of_the_listener() -> None:
    settings = WireSettings(connections_max=3)
    settings.listeners["B"] = ListenerLimits(connections_max=1)
    quotas = ConnectionQuotas(settings)
    woken: list[str] = []
    quotas.accept("B")
    assert (quotas.has_slot("A"), quotas.has_slot("B")) == (True, False)
    quotas.accept("A")
    quotas.accept("A")
    assert not quotas.has_slot("A")
    quotas.waiting.append(lambda: woken.append("A"))
    quotas.release("B")
    quotas.release("B")
    assert woken == ["A"]
    assert (quotas.count, quotas.has_slot("A"), quotas.has_slot("B")) == (2, True, True)


def test_the_rate_of_new_connections_is_that_of_the_window() -> None:
    """KIP-612: 11 samples of a second; nobody waits longer than one of them."""
    settings = WireSettings(creation_rate_max=10)
    quotas = ConnectionQuotas(settings)
    # The first second counts as if ten had passed: 100 connections are 10 a second.
    assert [quotas.delay_ms("A", 5_000) for _ in range(100)] == [0] * 100
    assert quotas.delay_ms("A", 5_000) == 100
    assert max(quotas.delay_ms("A", 5_000) for _ in range(100)) == 1_000
    settings.listeners["B"] = ListenerLimits(creation_rate_max=0)
    settings.creation_rate_max = UNLIMITED
    assert quotas.delay_ms("A", 5_000) == 0
    assert quotas.delay_ms("B", 5_000) == 1_000

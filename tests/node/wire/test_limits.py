"""The defaults that clients know are Kafka's, and clients are counted in and out."""

from odradek.node.wire.limits import Admission, WireSettings


def test_the_defaults_are_those_of_kafka() -> None:
    settings = WireSettings()
    assert settings.request_bytes_max == 100 * 1024 * 1024
    assert settings.connections_idle_ms_max == 10 * 60 * 1000
    assert settings.connections_max == settings.connections_per_ip_max == 2**31 - 1


def test_who_left_makes_room_and_is_not_remembered() -> None:
    settings = WireSettings(connections_max=3, connections_per_ip_max=2)
    admission = Admission(settings)
    assert admission.admit("a") is admission.admit("a") is admission.admit("b") is None
    assert admission.admit("c") == "max.connections is 3"
    admission.leave("b")
    assert admission.admit("a") == "max.connections.per.ip is 2 for a"
    assert admission.count_of_host == {"a": 2}


def test_limits_may_change_while_clients_are_there() -> None:
    settings = WireSettings(connections_per_ip_max=0)
    admission = Admission(settings)
    assert admission.admit("a") is not None
    settings.connections_per_ip_max_overrides["a"] = 1
    assert admission.admit("a") is None
    settings.connections_max = 1
    assert admission.admit("b") == "max.connections is 1"

"""The defaults that clients know are Kafka's."""

from node.wire.limits import WireSettings


def test_the_defaults_are_those_of_kafka() -> None:
    settings = WireSettings()
    assert settings.request_bytes_max == 100 * 1024 * 1024
    assert settings.connections_idle_ms_max == 10 * 60 * 1000
    assert settings.connections_max == settings.connections_per_ip_max == 2**31 - 1

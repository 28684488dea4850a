"""How often addresses may connect (KIP-612)."""

from odradek.node.wire.connection_rates import ADDRESSES_MAX, ConnectionRates, canonical_address


def limited(limits: dict[str, float], default: float | None = None) -> ConnectionRates:
    rates = ConnectionRates()
    rates.set_limits(limits, default)
    return rates


def accepted(rates: ConnectionRates, host: str, attempts: int, now_ms: int = 0) -> int:
    return sum(not rates.throttle_ms(host, now_ms) for _ in range(attempts))


def test_without_limits_nothing_is_counted() -> None:
    rates = ConnectionRates()
    assert accepted(rates, "10.0.0.1", 1_000) == 1_000
    assert not rates._rates


def test_an_address_has_its_limit_over_the_window() -> None:
    rates = limited({"10.0.0.1": 5.0})
    # Ten whole samples and the present one.
    assert accepted(rates, "10.0.0.1", 200) == 50
    assert rates.throttle_count == 150
    assert accepted(rates, "10.0.0.2", 200) == 200


def test_refused_connections_are_not_counted() -> None:
    rates = limited({"10.0.0.1": 5.0})
    accepted(rates, "10.0.0.1", 1_000)
    # The window has grown by half a second.
    assert accepted(rates, "10.0.0.1", 100, now_ms=500) == 2
    assert accepted(rates, "10.0.0.1", 100, now_ms=12_000) == 50


def test_a_refused_connection_is_closed_within_a_sample() -> None:
    rates = limited({}, default=1.0)
    accepted(rates, "10.0.0.1", 10)
    assert rates.throttle_ms("10.0.0.1", 0) == 1_000
    rates = limited({}, default=10.0)
    accepted(rates, "10.0.0.1", 100)
    assert rates.throttle_ms("10.0.0.1", 0) == 100


def test_the_default_is_for_each_address_without_its_own() -> None:
    rates = limited({"10.0.0.1": 5.0}, default=1.0)
    assert accepted(rates, "10.0.0.1", 100) == 50
    assert accepted(rates, "10.0.0.2", 100) == 10
    assert accepted(rates, "10.0.0.3", 100) == 10


def test_limits_change_at_once() -> None:
    rates = limited({"10.0.0.1": 1.0})
    assert accepted(rates, "10.0.0.1", 100) == 10
    rates.set_limits({"10.0.0.1": 3.0}, None)
    assert accepted(rates, "10.0.0.1", 100) == 20
    rates.set_limits({}, None)
    assert accepted(rates, "10.0.0.1", 100) == 100


def test_an_address_has_one_rate_however_it_is_written() -> None:
    assert canonical_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert canonical_address("2001:DB8:0::1") == "2001:db8::1"
    assert canonical_address("fe80::1%eth0") == "fe80::1"
    rates = limited({"10.0.0.1": 1.0})
    assert accepted(rates, "10.0.0.1", 5) + accepted(rates, "::ffff:10.0.0.1", 100) == 10


def test_the_number_of_addresses_is_bounded() -> None:
    rates = limited({}, default=1.0)
    for number in range(ADDRESSES_MAX + 10):
        rates.throttle_ms(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0)
    assert len(rates._rates) == ADDRESSES_MAX

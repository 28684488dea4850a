"""Quotas of IP addresses are applied as soon as the metadata has them, names when resolved."""

import asyncio
from collections.abc import Iterator

import pytest

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.client_quotas import ClientQuotasImage
from odradek.node.router.connection_limits import ConnectionLimits, resolve
from odradek.node.wire.connection_rates import ConnectionRates
from tests.support.log_lines import log_text

KEY = "connection_creation_rate"
SETTINGS = BrokerSettings()


def quotas(**rates: float) -> ClientQuotasImage:
    return ClientQuotasImage(
        {
            (("ip", None if host == "default" else host.replace("_", ".")),): {KEY: rate}
            for host, rate in rates.items()
        }
    )


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def accepted(rates: ConnectionRates, host: str) -> int:
    return sum(not rates.throttle_ms(host, 0) for _ in range(100))


def test_addresses_are_limited_at_once(loop: asyncio.AbstractEventLoop) -> None:
    rates = ConnectionRates()
    limits = ConnectionLimits(rates, loop)
    limits.follow(quotas(**{"10_0_0_1": 2.0, "default": 1.0}), SETTINGS)
    assert accepted(rates, "10.0.0.1") == 20
    assert accepted(rates, "10.0.0.2") == 10
    limits.follow(ClientQuotasImage({}), SETTINGS)
    assert accepted(rates, "10.0.0.2") == 100


def test_a_host_name_stands_for_its_address(loop: asyncio.AbstractEventLoop) -> None:
    rates = ConnectionRates()
    limits = ConnectionLimits(rates, loop)
    limits.follow(quotas(localhost=3.0), SETTINGS)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.run_until_complete(asyncio.sleep(0))
    assert accepted(rates, "127.0.0.1") == 30


def test_a_name_that_is_resolved_too_late_changes_nothing(loop: asyncio.AbstractEventLoop) -> None:
    rates = ConnectionRates()
    limits = ConnectionLimits(rates, loop)
    limits.follow(quotas(localhost=3.0), SETTINGS)
    limits.follow(ClientQuotasImage({}), SETTINGS)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.run_until_complete(asyncio.sleep(0))
    assert accepted(rates, "127.0.0.1") == 100


def test_single_limits_come_and_go(loop: asyncio.AbstractEventLoop) -> None:
    rates = ConnectionRates()
    limits = ConnectionLimits(rates, loop)
    first = quotas(**{"10_0_0_1": 2.0, "10_0_0_2": 3.0})
    limits.follow(first, SETTINGS)
    # The same address in two spellings is one.
    second = first.after({(("ip", "::ffff:10.0.0.3"),): {KEY: 4.0}, (("ip", "10.0.0.1"),): {}})
    limits.follow(second, SETTINGS)
    assert accepted(rates, "10.0.0.1") == 100
    assert accepted(rates, "10.0.0.2") == 30
    assert accepted(rates, "10.0.0.3") == 40
    limits.follow(second.after({(("ip", "10.0.0.2"),): {KEY: 5.0}}), SETTINGS)
    assert accepted(rates, "10.0.0.2") == 20


def test_the_window_follows_the_settings(loop: asyncio.AbstractEventLoop) -> None:
    rates = ConnectionRates()
    settings = BrokerSettings(quota_window_num=3, quota_window_size_seconds=2)
    ConnectionLimits(rates, loop).follow(quotas(default=1.0), settings)
    assert accepted(rates, "10.0.0.1") == 4


def test_names_without_an_address_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve(["localhost", "no such host.invalid"]) == {"localhost": "127.0.0.1"}
    assert "no such host.invalid" in log_text(caplog)

"""Applies the quotas of IP addresses to the connections of this router.

A quota may name a host. Its name is resolved when the quotas change, in a thread, and stands for
its first address, as in Kafka. Limits of addresses are in force at once. A name that cannot be
resolved here has no effect, and is logged.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.client_quotas import ClientQuotasImage
from odradek.node.wire.connection_rates import ConnectionRates, is_address

log = logging.getLogger(__name__)


class ConnectionLimits:
    """Keeps `rates` in step with the metadata."""

    def __init__(self, rates: ConnectionRates, loop: asyncio.AbstractEventLoop) -> None:
        self._rates = rates
        self._loop = loop
        self._quotas: ClientQuotasImage | None = None

    def follow(self, quotas: ClientQuotasImage, settings: BrokerSettings) -> None:
        """The quotas or the settings have changed."""
        self._rates.sample_count = settings.quota_window_num
        self._rates.sample_ms = 1000 * settings.quota_window_size_seconds
        if quotas is self._quotas:
            return
        self._quotas = quotas
        by_host = {host: rate for host, rate in quotas.connection_rates.items() if host is not None}
        addresses = {host: rate for host, rate in by_host.items() if is_address(host)}
        self._rates.set_limits(addresses, quotas.connection_rates.get(None))
        names = sorted(by_host.keys() - addresses.keys())
        if names:
            resolved = self._loop.run_in_executor(None, resolve, names)
            resolved.add_done_callback(lambda future: self._on_resolved(quotas, future.result()))

    def _on_resolved(self, quotas: ClientQuotasImage, address_of: Mapping[str, str]) -> None:
        if quotas is not self._quotas:
            return
        limits = {
            address_of.get(host, host): rate
            for host, rate in quotas.connection_rates.items()
            if host is not None
        }
        self._rates.set_limits(limits, quotas.connection_rates.get(None))


def resolve(names: Iterable[str]) -> dict[str, str]:
    """The first address of each host, IPv4 before IPv6; without those that have none. Blocks."""
    addresses = {}
    for name in names:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.warning("the host %s of a connection quota cannot be resolved: %s", name, error)
            continue
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        addresses[name] = str(found[0][4][0])
    return addresses

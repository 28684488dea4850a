"""Applies the quotas of IP addresses to the connections of this router.

A quota may name a host. Its name is resolved when the quotas change, in a thread, and stands for
its first address, as in Kafka. Limits of addresses are in force at once. A name that cannot be
resolved here has no effect, and is logged.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.client_quotas import ClientQuotasImage
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection_rates import ConnectionRates, canonical_address, is_address

log = get_logger(__name__)


class ConnectionLimits:
    """Keeps `rates` in step with the metadata."""

    def __init__(self, rates: ConnectionRates, loop: asyncio.AbstractEventLoop) -> None:
        self._rates = rates
        self._loop = loop
        self._limits: Mapping[str | None, float] = {}
        """The quotas that `rates` has."""
        self._addresses: dict[str, str] = {}
        """The addresses with quotas, as they are looked up."""
        self._names: set[str] = set()
        """The host names with quotas."""

    def follow(self, quotas: ClientQuotasImage, settings: BrokerSettings) -> None:
        """The quotas or the settings have changed."""
        self._rates.sample_count = settings.quota_window_num
        self._rates.sample_ms = 1000 * settings.quota_window_size_seconds
        before, limits = self._limits, quotas.connection_rates
        if limits is before:
            return
        self._limits = limits
        for host in limits.keys() ^ before.keys():
            if host is None:
                continue
            if host not in limits:
                self._addresses.pop(host, None)
                self._names.discard(host)
            elif is_address(host):
                self._addresses[host] = canonical_address(host)
            else:
                self._names.add(host)
        self._set_limits(self._addresses)
        if self._names:
            resolved = self._loop.run_in_executor(None, resolve, sorted(self._names))
            resolved.add_done_callback(lambda future: self._on_resolved(limits, future.result()))

    def _on_resolved(self, limits: Mapping[str | None, float], of_names: Mapping[str, str]) -> None:
        if limits is self._limits:
            of_names = {name: canonical_address(address) for name, address in of_names.items()}
            self._set_limits({**of_names, **self._addresses})

    def _set_limits(self, address_of: Mapping[str, str]) -> None:
        limits = self._limits
        by_address = {address: limits[host] for host, address in address_of.items()}
        self._rates.set_limits(by_address, limits.get(None))


def resolve(names: Iterable[str]) -> dict[str, str]:
    """The first address of each host, IPv4 before IPv6; without those that have none. Blocks."""
    addresses = {}
    for name in names:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.warning(
                "the host of a connection quota cannot be resolved", host=name, reason=str(error)
            )
            continue
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        addresses[name] = str(found[0][4][0])
    return addresses

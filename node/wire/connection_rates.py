"""Limits of how often one address connects: the quota connection_creation_rate of KIP-612.

A connection above its limit is accepted, and closed after the time that brings the rate within the
limit, at most one sample (Kafka: ConnectionThrottledException): a client that connects again at
once waits instead of spinning. Such connections are not counted. Invariant: at most `ADDRESSES_MAX`
addresses have a rate.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from odradek.cluster.security.quota_rates import SampledRate

ADDRESSES_MAX: Final = 10_000
"""Of more addresses, those that connected longest ago begin anew."""


class ConnectionRates:
    """How often each address has connected. An empty set of limits costs nothing."""

    def __init__(self) -> None:
        self.sample_count = 11  # Kafka's default: quota.window.num
        self.sample_ms = 1_000  # Kafka's default: quota.window.size.seconds
        self.throttle_count = 0
        """Connections that were refused."""
        self._limits: Mapping[str, float] = {}
        self._default: float | None = None
        self._rates: OrderedDict[str, SampledRate] = OrderedDict()

    def set_limits(self, limits: Mapping[str, float], default: float | None) -> None:
        """Connections per second by canonical address, and of all other addresses, each for
        itself."""
        self._limits = limits
        self._default = default
        if not limits and default is None:
            self._rates.clear()

    def throttle_ms(self, host: str, now_ms: int) -> int:
        """Count a new connection: 0 if it is accepted, or else in how many milliseconds it is to be
        closed."""
        if self._default is None and not self._limits:
            return 0
        address = canonical_address(host)
        limit = self._limits.get(address, self._default)
        if limit is None:
            return 0
        rate = self._rates.get(address)
        if rate is None:
            rate = self._rates[address] = SampledRate(self.sample_count, self.sample_ms)
            if len(self._rates) > ADDRESSES_MAX:
                self._rates.popitem(last=False)
        else:
            rate.sample_count, rate.sample_ms = self.sample_count, self.sample_ms
            self._rates.move_to_end(address)
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self.sample_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
            self.throttle_count += 1
        return throttle_ms


def is_address(host: str) -> bool:
    """Whether this is an IP address and not a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def canonical_address(host: str) -> str:
    """One text for each address: an IPv4 address that is mapped to IPv6 is an IPv4 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)

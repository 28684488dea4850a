"""The limits of client connections, and their counters.

`WireSettings` may change at run time. A client within the limits is not disturbed. One above them
takes bounded memory. As in Kafka, a connection above max.connections or the rate of new connections
waits until it is accepted (KIP-612), and one above the limit of its address is closed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.cluster.security.quota_rates import SampledRate

UNLIMITED = 2_147_483_647


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """The limits of one listener; those of the broker hold besides."""

    connections_max: int = UNLIMITED
    creation_rate_max: int = UNLIMITED


@dataclass(slots=True, kw_only=True)
class WireSettings:
    """Limits that may change at run time: connections read them at each use."""

    request_bytes_max: int = 104_857_600  # Kafka's default: socket.request.max.bytes
    connections_max: int = UNLIMITED  # Kafka's default: max.connections
    creation_rate_max: int = UNLIMITED  # Kafka's default: max.connection.creation.rate
    listeners: dict[str, ListenerLimits] = field(default_factory=dict)
    """The limits of listeners that have some of their own, by name."""
    quota_sample_count: int = 11  # Kafka's default: quota.window.num
    quota_sample_ms: int = 1_000  # Kafka's default: quota.window.size.seconds
    connections_per_ip_max: int = 2_147_483_647  # Kafka's default: max.connections.per.ip
    connections_per_ip_max_overrides: dict[str, int] = field(default_factory=dict)
    connections_idle_ms_max: int = 600_000  # Kafka's default: connections.max.idle.ms
    inflight_requests_max: int = 1_000
    inflight_bytes_max: int = 8 << 20
    """Of a connection's requests without a response. A client that sends without waiting would fill
    the arena, with memory that is in no cache, and others would have no room."""
    unsent_bytes_max: int = 4 << 20
    half_open_ms_max: int = 60_000
    """Until a whole request has arrived, and until the first one begins. Large requests may take
    longer."""
    write_stall_ms_max: int = 60_000
    """Until the client has read the written responses. Large responses may take longer."""
    transfer_bytes_per_s_min: int = 65_536
    """The lowest rate of large requests and responses."""


@dataclass(slots=True)
class WireCounters:
    """Counters since the process started, for the metrics."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_delayed: int = 0
    connections_idle_closed: int = 0
    connections_half_open_closed: int = 0
    connections_stalled_closed: int = 0
    protocol_errors: int = 0
    tls_handshakes: int = 0
    tls_handshakes_failed: int = 0
    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    starvations: int = 0


class ConnectionQuotas:
    """Counts connections, in total, by listener and by address, and limits them (Kafka's
    ConnectionQuotas). The empty name stands for the broker in the rates."""

    __slots__ = ("_rates", "_settings", "count", "count_of_host", "count_of_listener", "waiting")

    def __init__(self, settings: WireSettings) -> None:
        self._settings = settings
        self.count = 0
        self.count_of_listener: dict[str, int] = {}
        self.count_of_host: dict[str, int] = {}
        self.waiting: list[Callable[[], object]] = []
        """Called once each when there is room again, or the limits have changed."""
        self._rates: dict[str, SampledRate] = {}

    def has_slot(self, listener: str) -> bool:
        """Whether the listener may accept another connection."""
        limits = self._settings.listeners.get(listener)
        if self.count >= self._settings.connections_max:
            return False
        if limits is None:
            return True
        return self.count_of_listener.get(listener, 0) < limits.connections_max

    def delay_ms(self, listener: str, now_ms: int) -> int:
        """Count a new connection in the rates: how long it has to wait, at most a sample."""
        settings = self._settings
        limits = settings.listeners.get(listener)
        delay_ms = self._throttle_ms("", settings.creation_rate_max, now_ms)
        if limits is not None:
            of_listener_ms = self._throttle_ms(listener, limits.creation_rate_max, now_ms)
            delay_ms = max(delay_ms, of_listener_ms)
        return min(delay_ms, settings.quota_sample_ms)

    def accept(self, listener: str) -> None:
        """A connection is accepted: `release` it when it is gone, whatever became of it."""
        self.count += 1
        self.count_of_listener[listener] = self.count_of_listener.get(listener, 0) + 1

    def release(self, listener: str) -> None:
        """An accepted connection is gone."""
        if self.count_of_listener.get(listener):
            self.count -= 1
            self.count_of_listener[listener] -= 1
            self.wake()

    def wake(self) -> None:
        """There may be room again."""
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()

    def admit(self, host: str) -> str | None:
        """Count a new client of this address, or return why it is refused."""
        settings = self._settings
        of_host = self.count_of_host.get(host, 0)
        of_host_max = settings.connections_per_ip_max_overrides.get(
            host, settings.connections_per_ip_max
        )
        if of_host >= of_host_max:
            return f"max.connections.per.ip is {of_host_max} for {host}"
        self.count_of_host[host] = of_host + 1
        return None

    def leave(self, host: str) -> None:
        """A counted client has disconnected."""
        left = self.count_of_host[host] - 1
        if left:
            self.count_of_host[host] = left
        else:
            del self.count_of_host[host]

    def _throttle_ms(self, listener: str, limit: int, now_ms: int) -> int:
        if limit >= UNLIMITED:
            self._rates.pop(listener, None)
            return 0
        settings = self._settings
        rate = self._rates.get(listener)
        if rate is None:
            rate = SampledRate(settings.quota_sample_count, settings.quota_sample_ms)
            self._rates[listener] = rate
        rate.sample_count, rate.sample_ms = settings.quota_sample_count, settings.quota_sample_ms
        rate.record(1, now_ms)
        # With a limit of 0 every connection waits as long as one may.
        return rate.throttle_ms(limit, now_ms) if limit else settings.quota_sample_ms

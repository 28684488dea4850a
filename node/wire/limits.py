"""The limits of client connections, and their counters.

`WireSettings` may change at run time. A client within the limits is not disturbed. One above them
takes bounded memory.
"""

from dataclasses import dataclass, field

REFUSAL_WINDOW_S = 60.0
_REFUSALS_MAX = 1_000
"""Pairs of address and reason that are remembered."""


@dataclass(slots=True, kw_only=True)
class WireSettings:
    """Limits that may change at run time: connections read them at each use."""

    request_bytes_max: int = 104_857_600  # Kafka's default: socket.request.max.bytes
    connections_max: int = 2_147_483_647  # Kafka's default: max.connections
    connections_per_ip_max: int = 2_147_483_647  # Kafka's default: max.connections.per.ip
    connections_per_ip_max_overrides: dict[str, int] = field(default_factory=dict)
    connections_idle_ms_max: int = 600_000  # Kafka's default: connections.max.idle.ms
    inflight_requests_max: int = 1_000
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


class RefusalLog:
    """What to log of connections that are closed: one line in `REFUSAL_WINDOW_S` for each address
    and reason. A client that retries all the time, for example with TLS on a plaintext port, must
    not fill the log."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def line(self, host: str, reason: str, now_s: float, *, kind: str | None = None) -> str | None:
        """The text to log; None if the reason, or one of its kind, was logged in the window."""
        kind = kind or reason
        since_s, count = self._seen.get((host, kind), (-REFUSAL_WINDOW_S, 0))
        if now_s - since_s < REFUSAL_WINDOW_S:
            self._seen[host, kind] = since_s, count + 1
            return None
        if len(self._seen) >= _REFUSALS_MAX:
            self._seen = {
                key: seen for key, seen in self._seen.items() if now_s - seen[0] < REFUSAL_WINDOW_S
            }
            if len(self._seen) >= _REFUSALS_MAX:
                return None
        self._seen[host, kind] = now_s, 0
        return reason if not count else f"{reason} ({count} more times since the last line)"


class ConnectionQuotas:
    """Counts connections, in total and by address, and limits them (Kafka's ConnectionQuotas)."""

    __slots__ = ("_settings", "count", "count_of_host")

    def __init__(self, settings: WireSettings) -> None:
        self._settings = settings
        self.count = 0
        self.count_of_host: dict[str, int] = {}

    def admit(self, host: str) -> str | None:
        """Count a new client of this address, or return why it is refused."""
        settings = self._settings
        if self.count >= settings.connections_max:
            return f"max.connections is {settings.connections_max}"
        of_host = self.count_of_host.get(host, 0)
        of_host_max = settings.connections_per_ip_max_overrides.get(
            host, settings.connections_per_ip_max
        )
        if of_host >= of_host_max:
            return f"max.connections.per.ip is {of_host_max} for {host}"
        self.count += 1
        self.count_of_host[host] = of_host + 1
        return None

    def leave(self, host: str) -> None:
        """A counted client has disconnected."""
        self.count -= 1
        left = self.count_of_host[host] - 1
        if left:
            self.count_of_host[host] = left
        else:
            del self.count_of_host[host]

"""The limits of the wire, and the counts of what happened on it.

`WireSettings` may change at run time: connections look a limit up when they need it. One
invariant: a client that stays within them is never disturbed, one that does not costs bounded
memory.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class WireSettings:
    """Limits that may change at run time: connections look at them when they need them."""

    request_bytes_max: int = 104_857_600  # Kafka's default: socket.request.max.bytes
    connections_max: int = 2_147_483_647  # Kafka's default: max.connections
    connections_per_ip_max: int = 2_147_483_647  # Kafka's default: max.connections.per.ip
    connections_per_ip_max_overrides: dict[str, int] = field(default_factory=dict)
    connections_idle_ms_max: int = 600_000  # Kafka's default: connections.max.idle.ms
    inflight_requests_max: int = 1_000
    unsent_bytes_max: int = 4 << 20
    half_open_ms_max: int = 60_000
    """For a whole request to arrive, and for the first one to begin; big ones may take longer."""
    write_stall_ms_max: int = 60_000
    """For written responses to be taken by the client; big ones may take longer."""
    transfer_bytes_per_s_min: int = 65_536
    """The slowest client that big requests and responses wait for."""


@dataclass(slots=True)
class WireCounters:
    """What happened on the wire since the process began; read by the metrics."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_idle_closed: int = 0
    connections_half_open_closed: int = 0
    connections_stalled_closed: int = 0
    protocol_errors: int = 0
    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    starvations: int = 0

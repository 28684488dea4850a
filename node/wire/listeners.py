"""The listener that a connection came in by: its name and how it is protected.

One invariant: a listener keeps its security protocol as long as the process runs. Made by the
router's process from the configuration; read by connections, dispatch and authentication.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientListener:
    """One named listener of this node and its security protocol (Kafka's names)."""

    name: str
    security_protocol: str = "PLAINTEXT"
    is_tls: bool = field(init=False)
    """SSL and SASL_SSL: nothing but the handshake is sent in clear text."""
    is_sasl: bool = field(init=False)
    """SASL_PLAINTEXT and SASL_SSL: a connection has to authenticate before its first request."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_tls", self.security_protocol in ("SSL", "SASL_SSL"))
        object.__setattr__(self, "is_sasl", self.security_protocol.startswith("SASL_"))

"""The settings of connections: how many there may be, how fast they may come, and through what.

Each may also be set for one listener, as in listener.name.external.max.connections: both limits
then hold, that of the listener for its own connections. Those of addresses are in
`broker_settings`.
"""

import ipaddress

from odradek.cluster.metadata.config_definitions import (
    INT32_MAX,
    ConfigScope,
    ConfigValue,
    at_least,
    satisfying,
)
from odradek.cluster.metadata.config_schema import Strings, boolean, integer, settings, strings
from odradek.cluster.metadata.image import ConfigResourceType

_BROKER = ConfigScope.BROKER


def _are_networks(value: ConfigValue) -> bool:
    try:
        for each in value if isinstance(value, tuple) else ():
            ipaddress.ip_network(each, strict=False)
    except ValueError:
        return False
    return True


@settings(ConfigResourceType.BROKER)
class ConnectionSettings:
    """Of one listener, or of the broker."""

    max_connections: int = integer(
        INT32_MAX,
        "How many client connections a broker holds at once. More of them wait to be accepted.",
        enforced_by="odradek.node.wire.limits",
        validator=at_least(0),
        scope=_BROKER,
    )
    max_connection_creation_rate: int = integer(
        INT32_MAX,
        "How many connections a second are accepted, on average. More of them wait (KIP-612).",
        enforced_by="odradek.node.wire.limits",
        validator=at_least(0),
        scope=_BROKER,
    )
    proxy_protocol_enable: bool = boolean(
        False,
        "Whether each connection begins with a header of the PROXY protocol, version 2, that names"
        " the client. It then counts and is logged with its own address and not the proxy's.",
        enforced_by="odradek.node.wire.proxy_protocol",
        scope=_BROKER,
    )
    proxy_protocol_trusted_addresses: Strings = strings(
        "",
        "The addresses of proxies, or their networks as in 10.0.0.0/8. Others may not connect to a"
        " listener with proxy.protocol.enable: they could claim any address.",
        enforced_by="odradek.node.wire.proxy_protocol",
        validator=satisfying("Must be addresses or networks, as in 10.0.0.0/8", _are_networks),
        scope=_BROKER,
    )

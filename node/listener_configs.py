"""The listeners of a running node: those of its own configuration, and what was changed while it
runs, as configs of the broker.

A router binds them and the controller process registers them, each from the same two things. Of
what was not changed the node's own configuration holds, listener by listener. Called by these
processes, and by a router before it lets a change through.
"""

from collections.abc import Iterable, Mapping

import msgspec

from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.listener_addresses import (
    LISTENER_KEYS,
    SECURITY_PROTOCOLS,
    parse_addresses,
    parse_protocol_map,
)
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError


def effective_config(config: NodeConfig, image: MetadataImage) -> NodeConfig:
    """The node's configuration with its listeners as they are now. Raises ConfigurationError if
    the two do not fit: perhaps the node was started with others than those that were changed."""
    own = image.configs.of(ConfigResourceType.BROKER, str(config.node_id))
    listeners = effective_listeners(config, own)
    if listeners == config.listeners:
        return config
    return msgspec.structs.replace(config, listeners=listeners)


def effective_listeners(config: NodeConfig, own: Mapping[str, str]) -> tuple[ListenerConfig, ...]:
    """The listeners with these configs of the broker. Raises ConfigurationError with all errors."""
    if LISTENER_KEYS.isdisjoint(own):
        return config.listeners
    static = {each.name: each for each in config.listeners}
    try:
        bound = {name: (each.host, each.port) for name, each in static.items()}
        if own.get("listeners"):
            bound = parse_addresses(own["listeners"])
        map_text = own.get("listener.security.protocol.map")
        protocols = parse_protocol_map(map_text or "") or config.protocol_map
        advertised = {
            name: (each.advertised_host, each.advertised_port) for name, each in static.items()
        }
        if own.get("advertised.listeners"):
            advertised = dict(parse_addresses(own["advertised.listeners"]))
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    faults = []
    if own.get("advertised.listeners") and not advertised.keys() <= bound.keys():
        faults.append(
            f"Advertised listeners '{', '.join(advertised)}' must be a subset of listeners"
            f" '{', '.join(bound)}'"
        )
    listeners = []
    for name, (host, port) in bound.items():
        before = static.get(name)
        protocol = protocols.get(name)
        if protocol is None and before is not None and not map_text:
            protocol = before.security_protocol
        if protocol is None and name in SECURITY_PROTOCOLS:
            protocol = name
        if protocol is None:
            faults.append(f"Listener {name} is not in listener.security.protocol.map")
        advertised_host, advertised_port = advertised.get(name, (None, None))
        listeners.append(
            ListenerConfig(
                name=name,
                host=host,
                # The one that was bound for a listener of the node's own configuration.
                port=port or (before.port if before is not None and before.host == host else 0),
                security_protocol=protocol or "",
                advertised_host=advertised_host,
                advertised_port=advertised_port,
            )
        )
    faults += _port_faults(listeners, config.listeners)
    if faults:
        raise ConfigurationError(*faults)
    return tuple(listeners)


def listener_items(key: str, listeners: Iterable[ListenerConfig]) -> list[str]:
    """The items of `listeners` or `advertised.listeners` as these listeners have them."""
    if key == "listeners":
        return [f"{x.name}://{_address(x.host, x.port)}" for x in listeners]
    return [
        f"{x.name}://{_address(x.advertised_host, x.advertised_port or x.port)}"
        for x in listeners
        if x.advertised_host
    ]


def _port_faults(
    listeners: Iterable[ListenerConfig], static: tuple[ListenerConfig, ...]
) -> list[str]:
    known = {(each.name, each.host) for each in static}
    ports = [each.port for each in listeners if each.port]
    faults = [
        f"Listener {each.name} must have a fixed port: it is added to a running broker"
        for each in listeners
        if not each.port and (each.name, each.host) not in known
    ]
    faults += [
        f"Each listener must have a different port, but several have {port}"
        for port in dict.fromkeys(ports)
        if ports.count(port) > 1
    ]
    return faults


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

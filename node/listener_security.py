"""What a node says of the security of its listeners before they are open.

A node whose key stores cannot be used does not start, and one that lets anybody in from elsewhere
says so. Called by supervisor.py, and by the router for listeners that are added later.
"""

import ipaddress
from collections.abc import Iterable

from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import listener_settings, settings_of_listener
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.structured_log import get_logger
from odradek.node.wire.key_stores import KeyStoreError
from odradek.node.wire.tls_context import make_tls_context

log = get_logger(__name__)


def check_tls(config: NodeConfig) -> None:
    """Raise ConfigurationError, with all errors, unless the stores of each listener with TLS can be
    used. What was changed while the node ran is not known yet: a node must be able to start with
    the configuration that it is given."""
    static = config.broker_configs
    faults = []
    for listener in config.listeners:
        if listener.security_protocol in ("SSL", "SASL_SSL"):
            settings = listener_settings(
                TlsSettings, MetadataImage.empty(), config.node_id, static, listener.name
            )
            try:
                make_tls_context(settings)
            except KeyStoreError as error:
                faults.append(f"listener {listener.name}: {error}")
    if faults:
        raise ConfigurationError(*faults)


def warn_of_open_listeners(
    listeners: Iterable[ListenerConfig], layers: tuple[ConfigLayer, ...]
) -> None:
    """One warning for those of the listeners that others on the network reach without a login, or
    over which records and passwords travel unencrypted. `layers` are the broker's configs."""
    reached = [each for each in listeners if not is_loopback(each)]
    strangers = [each for each in reached if _lets_strangers_in(each, layers)]
    in_clear = [each for each in reached if each.security_protocol.endswith("PLAINTEXT")]
    if not strangers and not in_clear:
        return
    authorizer = (layer.configs.get("authorizer.class.name") for layer in layers)
    has_authorizer = bool(next((name for name in authorizer if name is not None), None))
    if strangers and not has_authorizer:
        problem = f"Anybody who reaches {_named(strangers)} may read and change everything"
    elif strangers:
        problem = f"{_named(strangers)} lets in clients without a login, as User:ANONYMOUS"
    else:
        problem = f"Whoever listens to the network reads what goes through {_named(in_clear)}"
    log.warning(
        "listeners are open to others on the network",
        reason=problem,
        action="bind 127.0.0.1 if only programs of this machine need it; `odradek format"
        " --hardened` makes a node with TLS, logins and ACLs; docs/security.md says how"
        " to protect this one; `odradek doctor --security` says what is open",
    )


def _lets_strangers_in(listener: ListenerConfig, layers: tuple[ConfigLayer, ...]) -> bool:
    if listener.security_protocol != "SSL":
        return listener.security_protocol == "PLAINTEXT"
    return settings_of_listener(TlsSettings, layers, listener.name).ssl_client_auth != "required"


def _named(listeners: Iterable[ListenerConfig]) -> str:
    return ", ".join(f"{each.name}://{each.host}:{each.port}" for each in listeners)


def is_loopback(listener: ListenerConfig) -> bool:
    """Whether only programs of this machine reach the listener."""
    if listener.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(listener.host).is_loopback
    except ValueError:
        return False

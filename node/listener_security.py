"""What the supervisor says of the security of a node's listeners before it starts anything.

A node whose key stores cannot be used does not start, and one that lets anybody in from elsewhere
says so. Called by supervisor.py.
"""

import ipaddress
import logging

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import listener_settings
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.config import ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.wire.key_stores import KeyStoreError
from odradek.node.wire.tls_context import make_tls_context

log = logging.getLogger(__name__)


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


def warn_of_open_listeners(config: NodeConfig) -> None:
    """One line for the listeners at which anybody on the network may do everything."""
    is_open = [
        f"{each.name}://{each.host}:{each.port}"
        for each in config.listeners
        if each.security_protocol == "PLAINTEXT" and not is_loopback(each)
    ]
    if is_open:
        log.warning(
            "Anybody who reaches %s may read and change everything: there is neither encryption nor"
            " authentication. Bind 127.0.0.1 if only programs of this machine need it, or give the"
            " listener TLS with client certificates: listener.security.protocol.map=NAME:SSL,"
            " ssl.keystore.location, ssl.truststore.location and ssl.client.auth=required.",
            ", ".join(is_open),
        )


def is_loopback(listener: ListenerConfig) -> bool:
    """Whether only programs of this machine reach the listener."""
    if listener.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(listener.host).is_loopback
    except ValueError:
        return False

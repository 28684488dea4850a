"""The texts of `listeners`, `advertised.listeners` and `listener.security.protocol.map`.

A listener has a name, an address and a security protocol. The parsers raise ValueError with the
reason why a text is not valid. Names are upper case, whatever the text has. What several of these
keys mean together is node/listener_configs.py's business.
"""

import re
from collections.abc import Callable
from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigValue, Validator, invalid_value

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LISTENER_KEYS: Final = frozenset(
    {"listeners", "advertised.listeners", "listener.security.protocol.map"}
)
"""To change one of them takes ALTER on the cluster, as to change ACLs: a listener without
authentication lets anybody in."""
DEFAULT_PROTOCOLS: Final = (
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
)
"""Kafka's default of listener.security.protocol.map: a protocol is a name of a listener, too."""

_LISTENER = re.compile(r"(?:(?P<name>[A-Za-z0-9_]+)://)?(?P<address>.*)")


def parse_addresses(text: str) -> dict[str, tuple[str, int]]:
    """`NAME://host:port,...`; the name may be omitted if there is one address."""
    addresses: dict[str, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        matched = _LISTENER.fullmatch(part)
        assert matched is not None
        name = (matched["name"] or "PLAINTEXT").upper()
        if name in addresses:
            raise ValueError(
                f"Two listeners have the name {name}. Name them, as in NAME://host:port."
            )
        addresses[name] = parse_host_and_port(matched["address"])
    if not addresses:
        raise ValueError("There must be at least one listener, for example PLAINTEXT://:9092")
    return addresses


def parse_host_and_port(text: str) -> tuple[str, int]:
    """`host:port`; an empty host, or `*`, is every address of the machine."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65_535:
        raise ValueError(
            f"{text!r} must be host:port with a port from 0 to 65535, as in 127.0.0.1:9092"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address must be in brackets, as in [::1]:9092")
    return ("" if host == "*" else host), int(port)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Kafka's listener.security.protocol.map: `NAME:PROTOCOL,...`."""
    protocols = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = part.partition(":")
        if protocol not in SECURITY_PROTOCOLS:
            raise ValueError(
                f"{part!r} must be NAME:PROTOCOL with one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol
    return protocols


def parsed_by(parse: Callable[[str], object]) -> Validator:
    """A text, or a list, that such a parser takes, or an empty one."""

    def check(name: str, value: ConfigValue) -> None:
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if not text:
            return
        try:
            parse(text)
        except ValueError as error:
            raise invalid_value(name, text, str(error)) from error

    return check

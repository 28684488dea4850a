"""Connections of the command line to a Kafka cluster: options, clients, and texts of errors.

Every command that needs a cluster takes the same options through `with_connection`. TLS and SASL
are set by librdkafka's properties (`-X`, `--client-config`). confluent-kafka, which is imported
inside functions only, reads them itself; security.py reads them for the command line's own
connections.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from odradek.node.blocking_client import BlockingClient
from odradek.node.cli.security import Security

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import Consumer, Producer

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
# Longest wait for a TCP connection before an address counts as not reachable.
CONNECT_TIMEOUT_S = 3.0


@dataclass(slots=True, kw_only=True)
class ClusterConnection:
    """The addresses of a cluster and the properties of connections to it."""

    bootstrap: str
    timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    _security: Security | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bootstrap servers."""
        return [split_address(each.strip()) for each in self.bootstrap.split(",")]

    def connect(self, host: str, port: int, timeout_s: float | None = None) -> BlockingClient:
        """A connection to one broker, authenticated. Raises OSError, NotABrokerError,
        ProtocolError; ClickException if the properties or the credentials are wrong."""
        if self._security is None:
            self._security = Security.of(self.properties)
            self._check_properties()
        return self._security.connect(host, port, timeout_s or self.timeout_s)

    def producer(self, properties: Mapping[str, str | int | float]) -> Producer:
        from confluent_kafka import Producer

        self.check_reachable()
        return Producer({**properties, **self._common()})

    def consumer(self, properties: Mapping[str, str | int | bool]) -> Consumer:
        from confluent_kafka import Consumer

        self.check_reachable()
        return Consumer({**properties, **self._common()})

    def check_reachable(self) -> None:
        """Raise ClickException when no bootstrap address accepts a connection.

        librdkafka would retry forever.
        """
        reasons = []
        for host, port in self.addresses:
            try:
                with socket.create_connection((host, port), CONNECT_TIMEOUT_S):
                    return
            except OSError as error:
                reasons.append(f"{host}:{port}: {error.strerror or error}")
        raise click.ClickException(
            "cannot reach the cluster ("
            + "; ".join(reasons)
            + "). Start one with `odradek serve`, or name one with --bootstrap HOST:PORT"
        )

    def _check_properties(self) -> None:
        """KafkaException if there is a property that librdkafka does not have, or a value that it
        does not take: a misspelt security.protocol must not mean PLAINTEXT."""
        if self.properties:
            from confluent_kafka import Producer

            Producer({"log_level": 0, **self.properties})

    def _common(self) -> dict[str, str | int]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "odradek-cli",
            "log_level": 0,  # the command reports errors itself
            **self.properties,
        }


def timeout_option(default: float, what: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`--timeout SECONDS`."""
    return click.option(
        "--timeout",
        default=default,
        show_default=True,
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        help=what,
    )


def takes_connection(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command that has `bootstrap` and `timeout` the options for client properties,
    and pass it a `connection` in place of all of them."""

    @click.option(
        "--property",
        "-X",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="A librdkafka client property, e.g. security.protocol=SASL_SSL.",
    )
    @click.option(
        "--client-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="ODRADEK_CLIENT_CONFIG",
        show_envvar=True,
        help="A file of client properties, one KEY=VALUE a line.",
    )
    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        names = ("bootstrap", "timeout", "client_config", "properties")
        given = [kwargs.pop(name) for name in names]
        kwargs["connection"] = make_connection(*given)  # type: ignore[arg-type]  # click's types
        return command(*args, **kwargs)

    return wrapper


def with_connection(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the connection options and pass it a `connection`."""
    bootstrap = click.option(
        "--bootstrap",
        "-b",
        envvar="ODRADEK_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Any broker of the cluster.",
    )
    timeout = timeout_option(30.0, "Longest wait for an answer.")
    return bootstrap(timeout(takes_connection(command)))


def make_connection(
    bootstrap: str, timeout_s: float, file: Path | None, properties: Iterable[str]
) -> ClusterConnection:
    """A connection from option values; a usage error names the wrong value."""
    for address in bootstrap.split(","):
        split_address(address.strip())
    merged: dict[str, str] = {}
    if file is not None:
        merged.update(parse_properties(file.read_text().splitlines(), f"in {file}"))
    merged.update(parse_properties(properties, "given with -X"))
    return ClusterConnection(bootstrap=bootstrap, timeout_s=timeout_s, properties=merged)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; a usage error otherwise."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--bootstrap")
    return host.strip("[]"), int(port)


def parse_properties(lines: Iterable[str], where: str) -> dict[str, str]:
    """Properties of `key=value` lines; blank lines and lines that start with # are skipped."""
    properties = {}
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} {where} is not KEY=VALUE")
        properties[key.strip()] = value.strip()
    return properties


def reason(error: object) -> str:
    """The text of a KafkaError as one line."""
    from confluent_kafka import KafkaError

    if not isinstance(error, KafkaError):
        return str(error)
    text = error.str() or error.name()
    if error.code() == KafkaError._TIMED_OUT:
        return f"{text}: the cluster did not answer in time. Raise --timeout."
    return f"{text} ({error.name()})" if error.code() > 0 else text


def explain(error: Exception) -> str | None:
    """The text of a KafkaException as one line; None for any other error."""
    # If confluent-kafka was never imported, the error is not one of its errors.
    library = sys.modules.get("confluent_kafka")
    if library is None or not isinstance(error, library.KafkaException):
        return None
    return reason(error.args[0]) if error.args else str(error)

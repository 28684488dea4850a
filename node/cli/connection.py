"""Connections of the command line to a Kafka cluster: options, clients, and texts of errors.

Every command that needs a cluster takes the same options through `with_connection`. TLS and SASL
are set by librdkafka's properties (`-X`, `--client-config`). confluent-kafka, which is imported
inside functions only, reads them itself; security.py reads them for the command line's own
connections.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import click
from click.core import ParameterSource

from odradek.node.cli.profiles import BOOTSTRAP, read_profile

if TYPE_CHECKING:
    # Neither confluent-kafka nor the codec may be imported before a command needs it.
    from confluent_kafka import Consumer, Producer

    from odradek.node.blocking_client import BlockingClient
    from odradek.node.cli.bootstrap import Address, NoBrokerAnswersError
    from odradek.node.cli.security import Security

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{DEFAULT_PORT}"
# Longest wait until a broker of the metadata has accepted a connection and answered on it.
CONNECT_TIMEOUT_S = 3.0


@dataclass(slots=True, kw_only=True)
class ClusterConnection:
    """The addresses of a cluster and the properties of connections to it."""

    bootstrap: str
    timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    answered: Address | None = None
    """The address of a broker that has answered."""
    _security: Security | None = None

    @property
    def addresses(self) -> list[Address]:
        """The bootstrap servers."""
        return [split_address(each.strip()) for each in self.bootstrap.split(",")]

    def prepare(self) -> None:
        """ClickException if the properties are wrong. `connect` in threads needs this before."""
        if self._security is None:
            from odradek.node.cli.security import Security

            self._security = Security.of(self.properties)
            self._check_properties()

    def connect(self, host: str, port: int, timeout_s: float | None = None) -> BlockingClient:
        """A connection to one broker, authenticated. Raises OSError, NotABrokerError,
        ProtocolError; ClickException if the properties or the credentials are wrong."""
        self.prepare()
        assert self._security is not None
        return self._security.connect(host, port, timeout_s or self.timeout_s)

    def producer(self, properties: Mapping[str, str | int | float]) -> Producer:
        from confluent_kafka import Producer

        return Producer({**properties, **self._common()})

    def consumer(self, properties: Mapping[str, str | int | bool]) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer({**properties, **self._common()})

    def check_reachable(self) -> None:
        """Find a bootstrap address of which the broker answers; ClickException if there is none
        within the timeout, or as soon as all attempts have failed.

        librdkafka would retry forever.
        """
        from odradek.node.cli.bootstrap import NoBrokerAnswersError, first_to_answer

        self.prepare()
        try:
            self.answered, client = first_to_answer(self.connect, self.addresses, self.timeout_s)
        except NoBrokerAnswersError as error:
            raise unreachable(error) from error
        client.close()

    def _check_properties(self) -> None:
        """KafkaException if there is a property that librdkafka does not have, or a value that it
        does not take: a misspelt security.protocol must not mean PLAINTEXT."""
        if self.properties:
            from confluent_kafka import Producer

            Producer({"log_level": 0, **self.properties})

    def _common(self) -> dict[str, str | int]:
        """ClickException if no broker answers."""
        from odradek.node.cli.bootstrap import address_text

        if self.answered is None:
            self.check_reachable()
        assert self.answered is not None
        return {
            # librdkafka waits 10 s for a broker that accepts connections and does not answer. It
            # gets the addresses of the others from this one.
            "bootstrap.servers": address_text(self.answered),
            "client.id": "odradek-cli",
            "log_level": 0,  # the command reports errors itself
            **self.properties,
        }


def installed_version() -> str | None:
    """The version of the installed package; None if the program runs from its source."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("odradek")
    except PackageNotFoundError:
        return None


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


def bootstrap_option(default: str | None) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`--bootstrap HOST[:PORT][,...]`. Without a default it is the option before the command, and
    the environment is left to the command."""
    return click.option(
        "--bootstrap",
        "-b",
        default=default,
        show_default=default is not None,
        envvar=None if default is None else "ODRADEK_BOOTSTRAP",
        show_envvar=True,
        metavar="HOST[:PORT][,...]",
        help="Any broker of the cluster.",
    )


def profile_option(command: Callable[..., R]) -> Callable[..., R]:
    """`--profile NAME`, which stands before the command, as `cluster_profile`."""
    return click.option(
        "--profile",
        "-p",
        "cluster_profile",
        envvar="ODRADEK_CLUSTER_PROFILE",
        show_envvar=True,
        metavar="NAME",
        help="A cluster of `odradek profile`. -b, -X and --client-config come before what it says.",
    )(command)


def properties_options(envvar: str | None) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The options for librdkafka's properties, as `properties` and `client_config`."""

    def with_options(command: Callable[..., R]) -> Callable[..., R]:
        properties = click.option(
            "--property",
            "-X",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="A librdkafka client property, e.g. security.protocol=SASL_SSL.",
        )
        file = click.option(
            "--client-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            envvar=envvar,
            show_envvar=True,
            help="A file of client properties, one KEY=VALUE a line.",
        )
        return properties(file(command))

    return with_options


def takes_connection(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command that has `bootstrap` and `timeout` the options for client properties,
    and pass it a `connection` in place of all of them."""

    @properties_options("ODRADEK_CLIENT_CONFIG")
    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        name = context.find_root().params.get("cluster_profile")
        kwargs["connection"] = make_connection(
            str(cluster_option(context, "bootstrap")),
            cast("float", kwargs.pop("timeout")),
            cast("Path | None", cluster_option(context, "client_config")),
            cluster_properties(context),
            {} if name is None else read_profile(name),
            is_bootstrap_named=is_named(context, "bootstrap"),
        )
        for name in ("bootstrap", "client_config", "properties"):
            del kwargs[name]
        return command(*args, **kwargs)

    return wrapper


def cluster_option(context: click.Context, name: str) -> object:
    """The value of `bootstrap` or `client_config`: of the command's option, else of the same option
    before the command (`odradek -b HOST topic list`), else of the environment or the default."""
    source = context.get_parameter_source(name)
    before = context.find_root().params.get(name)
    if source is not ParameterSource.COMMANDLINE and before is not None:
        return before
    return context.params.get(name)


def is_named(context: click.Context, name: str) -> bool:
    """Whether the option is on the command line, before the command or behind it."""
    return (
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        or context.find_root().params.get(name) is not None
    )


def cluster_properties(context: click.Context) -> tuple[str, ...]:
    """The values of -X before the command and after it; the last one of a property wins."""
    both = (context.find_root().params, context.params)
    return tuple(each for params in both for each in params.get("properties") or ())


def with_connection(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the connection options and pass it a `connection`."""
    timeout = timeout_option(
        30.0, "Longest time for the command, or without an answer if it runs on."
    )
    return bootstrap_option(DEFAULT_BOOTSTRAP)(timeout(takes_connection(command)))


def unreachable(error: NoBrokerAnswersError) -> click.ClickException:
    """The error of a command when no bootstrap address answers, with advice."""
    return click.ClickException(
        f"cannot reach the cluster ({error}). Start one with `odradek serve`, or name one with"
        " --bootstrap HOST:PORT"
    )


def make_connection(
    bootstrap: str,
    timeout_s: float,
    file: Path | None,
    properties: Iterable[str],
    profile: Mapping[str, str] | None = None,
    *,
    is_bootstrap_named: bool = True,
) -> ClusterConnection:
    """A connection from option values; a usage error names the wrong value. The properties of a
    profile are those that nothing else sets. `bootstrap.servers` of the properties replaces
    `bootstrap` unless that one was named."""
    merged = dict(profile or {})
    if file is not None:
        merged.update(parse_properties(file.read_text().splitlines(), f"in {file}"))
    merged.update(parse_properties(properties, "given with -X"))
    written = merged.pop(BOOTSTRAP, None)
    if written is not None and not is_bootstrap_named:
        bootstrap = written
    for address in bootstrap.split(","):
        split_address(address.strip())
    return ClusterConnection(bootstrap=bootstrap, timeout_s=timeout_s, properties=merged)


def split_address(address: str) -> Address:
    """Host and port of `host`, `host:port`, `v6`, `[v6]` or `[v6]:port`; a usage error otherwise.
    Without a port it is DEFAULT_PORT."""
    match = re.fullmatch(r"\[([^\[\]]+)\](?::([0-9]+))?|([^:\[\]\s]+)(?::([0-9]+))?", address)
    bare = _is_ipv6(address)
    if match is not None:
        host, port = match[1] or match[3], match[2] or match[4]
        is_valid = not match[1] or _is_ipv6(host)
    else:
        host, port, is_valid = address, None, bare
    number = DEFAULT_PORT if port is None else int(port)
    if not is_valid or not 0 < number < 65536:
        raise click.BadParameter(
            f"{address!r} is not HOST, HOST:PORT or [IPV6]:PORT", param_hint="--bootstrap"
        )
    return host, number


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


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

"""`odradek serve` and `odradek node start`: running a node.

`serve` is for development: it has a default for every setting, formats its data folder and prints
examples. `node start` is for a service: it takes a configuration file and refuses a data folder
that is not formatted, because a node that lost its disk must not start empty.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import click

from odradek.node.cli.connection import DEFAULT_BOOTSTRAP
from odradek.node.cli.main import LazyGroup
from odradek.node.cli.output import Output, with_output
from odradek.node.cli.parameters import pair

if TYPE_CHECKING:
    # The node's own modules are imported when a node is started, not for `odradek --help`.
    from odradek.node.config import NodeConfig
    from odradek.node.config_watch import ConfigFileWatch
    from odradek.node.supervisor import NodeState

# Environment variables of the command line's client side, which are not settings of a node.
CLIENT_VARIABLES = (
    *("ODRADEK_BOOTSTRAP", "ODRADEK_CLIENT_CONFIG", "ODRADEK_PROFILES"),
    "ODRADEK_CLUSTER_PROFILE",
)
# Defaults of `serve`: a broker for development that logs little.
SERVE_DEFAULTS = {"profile": "dev", "log.level": "WARNING"}
# Further ones, as KEY=VALUE with blanks between them. For images of containers: unlike variables of
# the settings themselves, these do not override a file of `node start`.
SERVE_DEFAULTS_VARIABLE = "ODRADEK_SERVE_DEFAULTS"

# name below `odradek node` -> module and the click command in it
NODE_COMMANDS: Mapping[str, tuple[str, str]] = {
    "add": ("odradek.node.cli.node_membership", "add"),
    "drain": ("odradek.node.cli.rebalance", "drain"),
    "rack": ("odradek.node.cli.kubernetes_rack", "rack"),
    "ready": ("odradek.node.cli.ready", "ready"),
    "remove": ("odradek.node.cli.node_membership", "remove"),
}

with_settings = click.option(
    "--set",
    "settings",
    type=pair,
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting of the node or of Kafka's brokers, e.g. log.retention.ms=3600000.",
)


@click.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help=f"Where clients connect; port 0 takes a free one.  [default: {DEFAULT_BOOTSTRAP}]",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Address for clients.  [default: the one they connect to]",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the data.  [default: odradek in the user's data folder]",
)
@click.option("--temporary", is_flag=True, help="New data in a folder that is deleted at the end.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that own partitions.")
@click.option(
    "--profile",
    type=click.Choice(["dev", "standard"]),
    help="dev: no waiting for group members, little memory.  [default: dev]",
)
@click.option(
    "--durability",
    type=click.Choice(["interval", "commit"]),
    help="When an acknowledged record is on the disk: within a second, or before the answer.  "
    "[default: interval]",
)
@click.option("--http", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="[default: warning]",
)
@click.option(
    "--attached", is_flag=True, help="Stop when standard input ends, with the parent process."
)
@with_settings
@with_output
def serve(
    listen: tuple[str, ...],
    advertise: str | None,
    data: Path | None,
    temporary: bool,
    workers: int | None,
    profile: str | None,
    durability: str | None,
    http: str | None,
    log_level: str | None,
    attached: bool,
    settings: tuple[tuple[str, str], ...],
    output: Output,
) -> None:
    """Run a single-node broker with defaults for every setting.

    Ctrl-C or SIGTERM stops it: requests in progress are finished and data are synced.
    """
    # Until the supervisor handles signals itself: a temporary folder is deleted in any case.
    signal.signal(signal.SIGTERM, _exit)
    with chosen_folder(data, is_temporary=temporary) as folder:
        options = {
            "listeners": ",".join(listen) or None,
            "advertised.listeners": advertise,
            "data": folder,
            "workers": workers,
            "profile": profile,
            "durability": durability,
            "http.listen": http,
            "log.level": log_level,
        }
        config, watch = _watched(
            None, {**serve_defaults(os.environ), **os.environ}, settings, options
        )
        if attached:
            threading.Thread(target=_stop_with_stdin, daemon=True).start()
        exit_code = _run(config, formats=True, output=output, watch=watch)
    click.get_current_context().exit(exit_code)


class NodeStartError(click.ClickException):
    """The node does not start. Where its log is JSON, this is a line of it, too."""

    def __init__(self, log_format: str, heading: str, *reasons: str) -> None:
        super().__init__("\n  ".join([heading, *reasons] if heading else reasons))
        self._log_format = log_format
        self._reasons = reasons

    def show(self, file: IO[Any] | None = None) -> None:
        """Write it to stderr."""
        from odradek.node.structured_log import is_text_format, line_of

        if is_text_format(self._log_format):
            super().show(file)
            return
        record = logging.LogRecord(
            __name__, logging.CRITICAL, __file__, 0, "the node does not start", (), None
        )
        record.reason = "; ".join(self._reasons)
        record.action = "correct what the reason names, then start the node again"
        click.echo(line_of(record, self._log_format, "supervisor"), file=file, err=True)


class NodeCommands(LazyGroup):
    """`odradek node`."""

    members = NODE_COMMANDS


@click.group(cls=NodeCommands, short_help="Run a node from a file; add, drain and remove nodes.")
def node() -> None:
    """Run a node from a configuration file; add, drain and remove nodes."""


@node.command()
@click.option(
    "--config",
    "-c",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML (*.toml) or properties as in Kafka's server.properties.",
)
@click.option(
    "--format", "formats", is_flag=True, help="Format the data folder if it is not formatted."
)
@with_settings
@with_output
def start(file: Path, formats: bool, settings: tuple[tuple[str, str], ...], output: Output) -> None:
    """Run the node that FILE describes.

    Values of the file are overridden by environment variables (ODRADEK_NODE_ID is node.id) and
    these by --set. FILE is watched: a change takes effect while the node runs, or is refused as a
    whole.
    """
    config, watch = _watched(file, os.environ, settings, {})
    click.get_current_context().exit(_run(config, formats=formats, output=output, watch=watch))


@contextmanager
def chosen_folder(data: Path | None, *, is_temporary: bool) -> Iterator[Path | None]:
    """`data`, or a new folder that is deleted at the end."""
    if not is_temporary:
        yield data
        return
    if data is not None:
        raise click.UsageError("Give --data or --temporary, not both.")
    with tempfile.TemporaryDirectory(prefix="odradek-") as folder:
        yield Path(folder)


def _watched(
    file: Path | None,
    environment: Mapping[str, str],
    settings: tuple[tuple[str, str], ...],
    options: Mapping[str, object],
) -> tuple[NodeConfig, ConfigFileWatch]:
    """The configuration of a node and what follows its files, or NodeStartError."""
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.config_watch import ConfigFileWatch

    try:
        config = _read(file, environment, settings, options)
    except ConfigurationError as fault:
        log_format = _written_log_format(file, environment, settings)
        raise NodeStartError(log_format, "wrong settings", *fault.faults) from fault
    return config, ConfigFileWatch(
        file, lambda: _read(file, environment, settings, options), config
    )


def load_node(
    file: Path | None,
    environment: Mapping[str, str],
    settings: tuple[tuple[str, str], ...],
    options: Mapping[str, object],
) -> NodeConfig:
    """The configuration of a node, or ClickException."""
    from odradek.node.config_sources import ConfigurationError

    try:
        return _read(file, environment, settings, options)
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(["wrong settings", *fault.faults])) from fault


def _read(
    file: Path | None,
    environment: Mapping[str, str],
    settings: tuple[tuple[str, str], ...],
    options: Mapping[str, object],
) -> NodeConfig:
    """The configuration of a node, or ConfigurationError. Options that are None are not set; others
    override `--set`."""
    from odradek.node.config import is_secret, load
    from odradek.node.config_sources import ConfigurationError, environment_name

    for key, _ in settings:
        if is_secret(key):
            raise ConfigurationError(
                f"--set {key}: all users of this machine can read the arguments of a process. Set"
                f" it in the configuration file, or the environment variable"
                f" {environment_name(key)}."
            )
    others = (*CLIENT_VARIABLES, SERVE_DEFAULTS_VARIABLE)
    variables = {name: text for name, text in environment.items() if name not in others}
    chosen = {key: str(value) for key, value in options.items() if value is not None}
    return load(file=file, environment=variables, options={**dict(settings), **chosen})


def _written_log_format(
    file: Path | None, environment: Mapping[str, str], settings: tuple[tuple[str, str], ...]
) -> str:
    """The `log.format` of a configuration that cannot be used, as far as it can be found."""
    from odradek.node.config_sources import ConfigurationError, environment_name, from_file

    written = dict(settings).get("log.format") or environment.get(environment_name("log.format"))
    if written is None and file is not None:
        with suppress(ConfigurationError):
            found = from_file(file).get("log.format")
            written = None if found is None else found.text
    return written if written in ("text", "json") else "auto"


def serve_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The defaults of `serve` as environment variables, or NodeStartError."""
    from odradek.node.config_sources import environment_name

    chosen = dict(SERVE_DEFAULTS)
    for word in environment.get(SERVE_DEFAULTS_VARIABLE, "").split():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise NodeStartError(
                environment.get(environment_name("log.format"), "auto"),
                "",
                f"{SERVE_DEFAULTS_VARIABLE}: {word!r} is not of the form KEY=VALUE",
            )
        chosen[key] = value
    return {environment_name(key): value for key, value in chosen.items()}


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _stop_with_stdin() -> None:
    """Stop the node when standard input reaches its end."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run(
    config: NodeConfig, *, formats: bool, output: Output, watch: ConfigFileWatch | None = None
) -> int:
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.supervisor import run

    # Started by a shell script with `&`, SIGINT is ignored; a node has its own way to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run(
            config,
            formats=formats,
            on_ready=lambda state: _print_ready(config, state, output),
            watch=watch,
        )
    except ConfigurationError as fault:
        raise NodeStartError(config.log_format, "", *fault.faults) from fault


def _notify_systemd(state: str) -> None:
    """Tell the service manager, if it has started this process with Type=notify (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification, suppress(OSError):
        # A leading @ is an abstract address.
        notification.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _print_ready(config: NodeConfig, state: NodeState, output: Output) -> None:
    """Print the address of the node and, on a terminal, what to try next."""
    _notify_systemd("READY=1")
    if output.is_json:
        output.json_line(
            {
                "bootstrap": state.bootstrap,
                "pid": state.pid,
                "data": config.data,
                "http": state.http or None,
                "children": state.children,
            }
        )
        return
    click.echo(f"Odradek is ready at {click.style(state.bootstrap, bold=True)}")
    click.echo(f"  node {config.node_id}, profile {config.profile}, data in {config.data}")
    if state.http:
        click.echo(f"  metrics at http://{state.http}/metrics")
    if output.is_terminal:
        there = "" if state.bootstrap == DEFAULT_BOOTSTRAP else f" -b {state.bootstrap}"
        click.echo(f"\nTry, in another shell:\n  odradek produce{there} greetings hello")
        click.echo(f"  odradek consume{there} greetings --follow")
        click.echo(f"  kcat -b {state.bootstrap} -L\n\nCtrl-C stops it.")

"""`odradek node ready`: does the node on this machine serve clients?

The health check of a container runs it every few seconds, beside a node that may have half a
processor. So it imports nothing of the broker: it finds the HTTP address in node.json and asks
/readyz.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Final

import click

STATE_NAME: Final = "node.json"
"""As the supervisor names it (node/supervisor.py)."""
ANSWER_BYTES_MAX: Final = 64 * 1024


@click.command(short_help="Exit with 0 if the node on this machine serves clients.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data folder of the node.  [default: $ODRADEK_DATA, or that of `odradek serve`]",
)
@click.option(
    "--http", metavar="HOST:PORT", help="Its http.listen.  [default: what the data folder says]"
)
@click.option(
    "--timeout",
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Longest time without an answer.",
)
def ready(data: Path | None, http: str | None, timeout: float) -> None:
    """Exit with 0 if the node on this machine is ready to serve clients, and with 1 if it is not.

    It prints what /readyz says. The node needs http.listen.
    """
    status, text = ask_readiness(http or http_address(data or _data_folder()), timeout)
    click.echo(text.rstrip("\n"), err=status != 200)
    click.get_current_context().exit(0 if status == 200 else 1)


def http_address(data: Path) -> str:
    """The HTTP address of the node that runs in this data folder, or ClickException."""
    try:
        state = json.loads((data / STATE_NAME).read_bytes())
    except FileNotFoundError:
        raise click.ClickException(
            f"no node in {data} is ready: it does not run, or is starting or stopping"
        ) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot read {data / STATE_NAME}: {error}") from error
    address = str(state.get("http") or "")
    if not address:
        raise click.ClickException(
            f"the node in {data} has no http.listen. Set it, for example to 127.0.0.1:8080"
        )
    return address


def ask_readiness(address: str, timeout_s: float) -> tuple[int, str]:
    """Status and text of /readyz, or ClickException."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--http")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host.strip("[]"))
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.sendall(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            while len(answer) < ANSWER_BYTES_MAX and (received := connection.recv(4096)):
                answer += received
    except OSError as error:
        raise click.ClickException(f"http://{address}/readyz does not answer: {error}") from error
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(" ", 2)
    if len(words) < 3 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise click.ClickException(f"http://{address}/readyz does not answer in HTTP")
    return int(words[1]), body


def _data_folder() -> Path:
    data = os.environ.get("ODRADEK_DATA")
    if data:
        return Path(data).expanduser()
    from odradek.node.default_folders import default_data_folder

    return default_data_folder()

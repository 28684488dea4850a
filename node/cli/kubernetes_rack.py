"""`odradek node rack`: the rack of the machine that a pod runs on, from the machine's labels.

For the init container of a pod in Kubernetes before 1.35, which does not copy these labels to pods.
It asks the API server as the pod's service account, which needs to be allowed to `get` nodes, and
writes the rack to a file that the node's configuration refers to (node/config_providers.py). It
imports nothing of the broker.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from odradek.node.cli.connection import timeout_option

ANSWER_BYTES_MAX: Final = 8 << 20
ATTEMPT_S: Final = 5.0
PAUSE_S: Final = 0.5
TOKEN_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
KEY: Final = "broker.rack"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class ApiServerNotReady(Exception):
    """The API server may answer later."""


@click.command(short_help="Write the rack of this pod's machine to a file.")
@click.option("--machine", required=True, metavar="NAME", help="The machine (spec.nodeName).")
@click.option("--label", required=True, metavar="KEY", help="Its label that names the rack.")
@click.option(
    "--file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The properties file to write, which gets the key broker.rack.",
)
@click.option(
    "--credentials",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(TOKEN_FOLDER),
    show_default=True,
    help="The folder with `token` and `ca.crt` of the service account.",
)
@timeout_option(60, "Longest time in which the API server has to answer.")
def rack(machine: str, label: str, file: Path, credentials: Path, timeout: float) -> None:
    """Write the rack of the machine that this pod runs on, from a label of the machine.

    For pods in Kubernetes: it asks the API server with the credentials of the service account.
    """
    labels = _ask_until(machine, credentials, time.monotonic() + timeout)
    value = str(labels.get(label, ""))
    if not _LABEL_VALUE.fullmatch(value):
        raise click.ClickException(
            f"the machine {machine} has no label {label}: kubectl label node {machine} {label}=RACK"
        )
    written = file.with_name(f"{file.name}.new")
    try:
        written.write_text(f"{KEY}={value}\n")
        written.replace(file)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"The rack of {machine} is {value}.")


def _ask_until(machine: str, credentials: Path, deadline: float) -> dict[str, object]:
    """The labels of a machine. ClickException if they are refused, or not known in time."""
    while True:
        try:
            return _ask(machine, credentials)
        except (OSError, http.client.HTTPException, ApiServerNotReady) as error:
            if isinstance(error, ssl.SSLCertVerificationError) or time.monotonic() > deadline:
                raise click.ClickException(f"the API server does not answer: {error}") from error
        time.sleep(PAUSE_S)


def _ask(machine: str, credentials: Path) -> dict[str, object]:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    try:
        token = (credentials / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(
            f"cannot read the credentials in {credentials}: {error}"
        ) from error
    connection = http.client.HTTPSConnection(host, port, timeout=ATTEMPT_S, context=context)
    try:
        path = f"/api/v1/nodes/{quote(machine, safe='')}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise click.ClickException(
            f"the service account may not get the machine {machine} ({answer.status}"
            f" {answer.reason}): it needs a ClusterRole with the verb get for nodes"
        )
    if answer.status == 404:
        raise click.ClickException(f"there is no machine {machine}")
    if answer.status != 200:
        raise ApiServerNotReady(f"{answer.status} {answer.reason}")
    try:
        labels = json.loads(body)["metadata"].get("labels", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        labels = None
    if not isinstance(labels, dict):
        raise ApiServerNotReady("its answer is no machine")
    return labels

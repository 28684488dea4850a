"""`odradek doctor`: why a client on this machine cannot reach a cluster.

A client gets the advertised addresses from any broker and then connects to those. A common problem
with Kafka is an address that is right for the broker and wrong for the client. So each is probed
from here, and every problem is shown with its remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path

import click

from odradek.node.cli.connection import (
    DEFAULT_BOOTSTRAP,
    ClusterConnection,
    bootstrap_option,
    takes_connection,
    timeout_option,
)
from odradek.node.cli.listener_problems import LISTENER_ADVICE
from odradek.node.cli.output import Output, Row, with_output
from odradek.node.cli.probe import Address, ProbeResult, probe
from odradek.node.cli.storage_problems import storage_findings
from odradek.protocol.record_walker import IS_COMPILED

CERTIFICATE_DAYS_MIN = 30
"""A certificate that is valid for fewer days is a problem."""
PROBES_MAX = 16
"""Addresses that are probed at a time."""
_WORDS = {
    "": "ok",
    "name": "unknown name",
    "refused": "refused",
    "silent": "no answer",
    "unreachable": "unreachable",
    "closed": "closes the connection",
    "tls": "wants TLS",
    "not_tls": "does not speak TLS",
    "certificate": "certificate not trusted",
    "login": "refuses the login",
    "stranger": "not a Kafka broker",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its remedy; `node` is None if it does not concern one node."""

    node: int | None
    address: str
    problem: str
    advice: str


@click.command(short_help="Say why clients here cannot reach a cluster.")
@click.argument("addresses", required=False, metavar="[HOST[:PORT][,...]]")
@bootstrap_option(DEFAULT_BOOTSTRAP)
@timeout_option(3.0, "Longest wait for each address.")
@click.option(
    "--security",
    "is_about_security",
    is_flag=True,
    help="Say what each address lets a stranger do, without using your credentials there.",
)
@click.option(
    "--config",
    "-c",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --security: also name the risky settings of this configuration of a node.",
)
@takes_connection
@with_output
def doctor(
    addresses: str | None,
    is_about_security: bool,
    file: Path | None,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Connect to every address that a cluster advertises to its clients, from here.

    Reports for each address that cannot be used what is wrong and what to change, and whether the
    installation here has its compiled parts. Works with any Kafka.

    --security connects as a stranger would: without credentials, with the passwords of Kafka's
    documentation, with a token that nobody has signed. It only looks. The exit code is 1 if
    something serious is open.
    """
    if addresses is not None:
        connection.bootstrap = addresses
    if is_about_security:
        # Its imports are not paid for by every use of the command.
        from odradek.node.cli.security_doctor import examine

        examine(connection, file, output)
        return
    if file is not None:
        raise click.UsageError("--config needs --security.")
    connection.prepare()
    bootstrap_probes = _probe_all([Address(*each) for each in connection.addresses], connection)
    bootstrap_probe = next((each for each in bootstrap_probes if not each.failure), None)
    rows: list[Row] = [_row("bootstrap", None, each) for each in bootstrap_probes]
    problems = [problem for each in bootstrap_probes for problem in bootstrap_problems(each)]
    if bootstrap_probe is not None:
        problems += cluster_problems(bootstrap_probe)
        advertised = sorted(bootstrap_probe.brokers.items())
        results = _probe_all([address for _, address in advertised], connection)
        for (node_id, _), found in zip(advertised, results, strict=True):
            rows.append(_row("advertised", node_id, found))
            problems += certificate_problems(found)
            problems += broker_problems(node_id, found, bootstrap_probe)
        problems += secret_problems(
            {node: found.secrets for (node, _), found in zip(advertised, results, strict=True)}
        )
    if output.is_json:
        output.document(
            {
                "cluster_id": bootstrap_probe.cluster_id if bootstrap_probe is not None else None,
                "addresses": rows,
                "is_record_check_compiled": IS_COMPILED,
                "installation": installation_text(is_compiled=IS_COMPILED),
                "problems": [asdict(problem) for problem in problems],
            }
        )
    else:
        output.rows(rows)
        click.echo(f"\n{installation_text(is_compiled=IS_COMPILED)}")
        for each in problems:
            click.echo(f"\n{click.style(each.problem, bold=True)}\n  {each.advice}", err=True)
        if not problems:
            output.hint("\nEvery address can be used from here.")
    if problems:
        click.get_current_context().exit(1)


def installation_text(*, is_compiled: bool) -> str:
    """Whether nodes that are started here check the records of producers by compiled code."""
    if is_compiled:
        return "This installation checks produced records with compiled code."
    return (
        "This installation checks produced records with Python that is not compiled, in fifty times"
        " the time: install a C compiler and Python's headers (Debian: gcc python3-dev), then"
        " reinstall odradek from its source."
    )


def _probe_all(addresses: Sequence[Address], connection: ClusterConnection) -> list[ProbeResult]:
    """Side by side: several addresses may be silent until the timeout."""
    with ThreadPoolExecutor(PROBES_MAX) as pool:
        return list(pool.map(lambda address: probe(address, connection), addresses))


def bootstrap_problems(found: ProbeResult) -> Iterator[Problem]:
    """Problems of a bootstrap address."""
    address = str(found.address)
    if found.failure:
        advice = {
            "name": "Check the name, or use an address.",
            "refused": "Nothing listens there: is the broker running, is the port right, and is it"
            " published if the broker runs in a container?",
            "silent": "A firewall may be in between, or the address belongs to a machine that is"
            " off.",
            "unreachable": "There is no route from here to there.",
            "closed": "The listener may want TLS or a login (-X security.protocol=...), or it is"
            " not a Kafka broker.",
            "tls": "That listener speaks TLS: set -X security.protocol=SSL or SASL_SSL.",
            "not_tls": "That listener may be a PLAINTEXT one: leave security.protocol out.",
            "certificate": "Name the authority of its certificate: -X ssl.ca.location=FILE. The"
            " certificate has to be for the name that you connect to.",
            "login": "Check sasl.mechanism, sasl.username and sasl.password.",
            "stranger": "Something else listens there. Is it the right port?",
        }[found.failure]
        yield Problem(None, address, f"{address}: {_failure_text(found)}", advice)


def cluster_problems(bootstrap_probe: ProbeResult) -> Iterator[Problem]:
    """Problems in the metadata of the cluster."""
    address = str(bootstrap_probe.address)
    if not bootstrap_probe.brokers:
        yield Problem(
            None,
            address,
            f"{address} reports no broker",
            "The cluster has not started yet, or all brokers are fenced. Check their logs.",
        )
    elif bootstrap_probe.controller_id < 0:
        yield Problem(
            None,
            address,
            "the cluster has no active controller",
            "Topics cannot be created and leaders not elected until a majority of the controllers"
            " is available. Check their logs.",
        )
    by_address: dict[Address, list[int]] = {}
    for node_id, each in bootstrap_probe.brokers.items():
        by_address.setdefault(each, []).append(node_id)
    for each, node_ids in by_address.items():
        if len(node_ids) > 1:
            names = " and ".join(map(str, sorted(node_ids)))
            yield Problem(
                None,
                str(each),
                f"nodes {names} advertise the same address {each}",
                "Clients reach one of them only. Give each node an advertised.listeners of its"
                " own, with a port of its own if they share a host.",
            )


def broker_problems(
    node_id: int, found: ProbeResult, bootstrap_probe: ProbeResult
) -> Iterator[Problem]:
    """Problems of the address that a broker advertises."""
    address = str(found.address)
    setting = f"advertised.listeners of node {node_id}"
    if not found.failure:
        if found.cluster_id != bootstrap_probe.cluster_id:
            yield Problem(
                node_id,
                address,
                f"node {node_id} is advertised at {address}, where another cluster answers"
                f" ({found.cluster_id}, not {bootstrap_probe.cluster_id})",
                "Two clusters are advertised as one. Correct"
                f" {setting}{_if_loopback(found, bootstrap_probe)}.",
            )
        elif node_id not in found.brokers:
            yield Problem(
                node_id,
                address,
                f"node {node_id} is advertised at {address}, where it is unknown",
                f"That broker may just have left. Otherwise correct {setting}.",
            )
        yield from file_problems(node_id, found)
        return
    what = f"node {node_id} is advertised at {address}: {_failure_text(found)}"
    if found.failure == "name":
        advice = (
            f"Clients here cannot resolve {found.address.host}. Set {setting} to a name or address"
            " that they can, or make the name resolvable here."
        )
    elif _is_loopback(found) and not _is_loopback(bootstrap_probe):
        advice = (
            f"{found.address.host} means the client's own machine to a client. Set {setting} to"
            f" the host that clients use, for example {bootstrap_probe.address.host}."
        )
    elif found.failure == "refused":
        advice = (
            f"Is node {node_id} running, and is that port open or published under this number? If"
            f" clients use another address, set {setting} to it."
        )
    elif found.failure in ("silent", "unreachable"):
        advice = (
            "The address may belong to a network that clients are not in (a container's, a"
            f" cluster's). Set {setting} to one that they can reach, or open the firewall."
        )
    elif found.failure == "tls":
        advice = (
            "That listener speaks TLS. Set -X security.protocol=SSL or SASL_SSL, or correct"
            f" {setting}."
        )
    elif found.failure in ("certificate", "not_tls", "login"):
        advice = f"It does not accept what the bootstrap address accepts. Correct {setting}."
    else:
        advice = f"Something else answers there. Correct {setting}."
    yield Problem(node_id, address, what, advice)


def certificate_problems(found: ProbeResult) -> Iterator[Problem]:
    """A certificate that expires soon: clients will not connect any more."""
    days = found.certificate_days
    if days is not None and days < CERTIFICATE_DAYS_MIN:
        address = str(found.address)
        when = "has expired" if days < 0 else f"expires in {days:.0f} days"
        yield Problem(
            None,
            address,
            f"the certificate of {address} {when}",
            "Write a new one into the files of ssl.keystore.location. Odradek uses it within"
            " seconds, Kafka when ssl.keystore.location is set again.",
        )


def secret_problems(secrets: Mapping[int, tuple[str, ...] | None]) -> Iterator[Problem]:
    """Of the fingerprints of each node's cluster secrets, None where they are not known."""
    known = {node: found for node, found in secrets.items() if found is not None}
    if len(set(known.values())) > 1:
        shown = "; ".join(
            f"node {node} has {', then '.join(found) or 'none'}" for node, found in known.items()
        )
        yield Problem(
            None,
            "",
            f"the nodes do not have the same cluster secrets in the same order: {shown}"
            " (fingerprints)",
            "Give all nodes the same before the next step of replacing the secret.",
        )
    elif any(len(found) > 1 for found in known.values()):
        yield Problem(
            None,
            "",
            "every node accepts two cluster secrets: the secret is being replaced",
            "If all nodes have the new secret first, remove the old one from each; otherwise put"
            " the new one first on each.",
        )


def file_problems(node_id: int, found: ProbeResult) -> Iterator[Problem]:
    """What a broker says of its listeners, its configuration file and its log directories."""
    for text in found.listener_problems:
        yield Problem(
            node_id,
            str(found.address),
            f"node {node_id}: {text}",
            LISTENER_ADVICE,
        )
    if found.file_problem:
        yield Problem(
            node_id,
            str(found.address),
            f"node {node_id} refuses its configuration file as it is now: {found.file_problem}",
            "It keeps the configuration that it has, and would not start with this file. Correct"
            " the file; the node notices by itself.",
        )
    if found.settings_problem:
        yield Problem(
            node_id,
            str(found.address),
            f"node {node_id} does not have what is set for it through the cluster:"
            f" {found.settings_problem}",
            "It keeps the configuration that it has. Set a value that it can have.",
        )
    if found.storage_problem:
        (finding,) = storage_findings({node_id: found.storage_problem})
        yield Problem(node_id, str(found.address), finding.what.rstrip("."), finding.advice)
    if found.restart_keys:
        yield Problem(
            node_id,
            str(found.address),
            f"node {node_id} needs a restart for {', '.join(found.restart_keys)}, which changed in"
            " its configuration file",
            "Restart the node, or put the old values back.",
        )


def _failure_text(found: ProbeResult) -> str:
    words = _WORDS[found.failure]
    return f"{words} ({found.detail})" if found.detail else words


def _if_loopback(found: ProbeResult, bootstrap_probe: ProbeResult) -> str:
    if _is_loopback(found) and not _is_loopback(bootstrap_probe):
        return f": {found.address.host} means the client's own machine to a client"
    return ""


def _is_loopback(found: ProbeResult) -> bool:
    return bool(found.resolved) and all(ip_address(each).is_loopback for each in found.resolved)


def _row(source: str, node_id: int | None, found: ProbeResult) -> Row:
    return {
        "address": str(found.address),
        "source": source,
        "node": node_id,
        "resolves_to": ", ".join(found.resolved) or None,
        "connect_ms": None if found.connected_ms is None else round(found.connected_ms, 1),
        "verdict": _WORDS[found.failure],
    }

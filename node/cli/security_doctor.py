"""`odradek doctor --security`: what an address lets a stranger do, and risky settings.

Probes the addresses and, if a way in or the caller's own credentials tell them, all that the
cluster advertises; judges; prints. Changes nothing, but the brokers' logs show failed logins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click

from odradek.node.blocking_client import NotABrokerError
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.exposure import Exposure, OldTlsVersions, has_authorizer, probe_exposure
from odradek.node.cli.exposure_findings import (
    SERIOUS,
    SEVERITIES,
    SecurityFinding,
    exposure_findings,
    login_findings,
    rights,
    sights,
)
from odradek.node.cli.output import Json, Output, Row
from odradek.node.cli.probe import Address
from odradek.node.cli.security_settings import settings_findings
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.metadata import MetadataRequest

PROBES_MAX = 16
"""Addresses that are probed at a time."""
_COLOURS = {SERIOUS: "red", "warning": "yellow", "advice": "cyan"}


def examine(connection: ClusterConnection, file: Path | None, output: Output) -> None:
    """Probe, judge, print; exit code 1 if something serious is open, or nothing could be probed."""
    exposures, of_login = _probe_cluster(connection)
    findings = [finding for each in exposures for finding in exposure_findings(each)]
    findings += of_login
    if file is not None:
        findings += _findings_of_file(file)
    findings.sort(key=lambda each: SEVERITIES.index(each.severity))
    unreached = [each for each in exposures if each.failure]
    if output.is_json:
        output.document(
            {
                "addresses": [_document(each) for each in exposures],
                "findings": [asdict(each) for each in findings],
            }
        )
    else:
        output.rows([_row(each) for each in exposures])
        for finding in findings:
            severity = click.style(finding.severity, fg=_COLOURS[finding.severity], bold=True)
            click.echo(f"\n{severity}: {finding.address}: {finding.finding}\n  {finding.advice}")
        for each in unreached:
            click.echo(f"\n{each.address}: {each.failure}; nothing is known of it", err=True)
        if len(unreached) < len(exposures) or findings:
            _summarize(findings, output)
    if any(each.severity == SERIOUS for each in findings) or len(unreached) == len(exposures):
        click.get_current_context().exit(1)


def _probe_cluster(connection: ClusterConnection) -> tuple[list[Exposure], list[SecurityFinding]]:
    """The named addresses, then those that are advertised; and what the caller's own login shows
    besides."""
    connection.prepare()
    old_tls = OldTlsVersions()
    named = [Address(*each) for each in connection.addresses]
    exposures = _probe_all(named, connection, old_tls)
    told: Mapping[int, Address] = next(
        (access.brokers for each in exposures for access in each.ways_in if access.brokers), {}
    )
    advertised = set(told.values())
    findings: list[SecurityFinding] = []
    if not any(access.has_authorizer is False for each in exposures for access in each.ways_in):
        own, findings = _look_with_own_login(connection)
        advertised = advertised or own
    more = sorted(advertised - {*named}, key=str)
    return exposures + _probe_all(more, connection, old_tls), findings


def _probe_all(
    addresses: Sequence[Address], connection: ClusterConnection, old_tls: OldTlsVersions
) -> list[Exposure]:
    """Side by side: several may be silent until the timeout."""
    if not addresses:
        return []
    with ThreadPoolExecutor(PROBES_MAX) as pool:
        return list(
            pool.map(
                lambda each: probe_exposure(
                    each, connection.timeout_s, connection.properties, old_tls
                ),
                addresses,
            )
        )


def _look_with_own_login(
    connection: ClusterConnection,
) -> tuple[set[Address], list[SecurityFinding]]:
    """The addresses of the brokers, and what is wrong behind the login; nothing without
    credentials that are accepted."""
    advertised: set[Address] = set()
    findings: list[SecurityFinding] = []
    if not connection.properties:
        return advertised, findings
    for host, port in connection.addresses:
        try:
            with connection.connect(host, port) as client:
                metadata = client.ask(MetadataRequest(topics=[]))
                advertised = {Address(each.host, each.port) for each in metadata.brokers}
                told = login_findings(
                    str(Address(host, port)), has_authorizer=has_authorizer(client)
                )
                findings = list(told)
        except (OSError, NotABrokerError, ProtocolError, click.ClickException):
            continue
        break
    return advertised, findings


def _findings_of_file(file: Path) -> list[SecurityFinding]:
    from odradek.node.config import load
    from odradek.node.config_sources import ConfigurationError

    try:
        return list(settings_findings(file, load(file=file, environment={})))
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(["wrong settings", *fault.faults])) from fault


def _row(found: Exposure) -> Row:
    days = found.certificate_days
    login = ", ".join(found.mechanisms)
    return {
        "address": str(found.address),
        "protocol": found.protocol or None,
        "tls": found.tls_version or None,
        "certificate_days": None if days is None else round(days),
        "login": login or ("certificate" if found.wants_client_certificate else None),
        "strangers": _verdict(found),
    }


def _verdict(found: Exposure) -> str:
    if found.failure:
        return "unknown"
    if not found.ways_in:
        return "stay outside"
    if any(each.has_authorizer is False or rights(each) for each in found.ways_in):
        return "may read or change"
    return "are let in"


def _document(found: Exposure) -> Json:
    return {
        **_row(found),
        "failure": found.failure or None,
        "wants_client_certificate": found.wants_client_certificate,
        "mechanisms": list(found.mechanisms),
        "old_tls_versions": list(found.old_tls_versions),
        "certificate_subject": found.certificate_subject or None,
        "certificate_problem": found.certificate_problem or None,
        "ways_in": [
            {
                "entrance": each.entrance,
                "has_authorizer": each.has_authorizer,
                "may": rights(each),
                "sees": sights(each),
            }
            for each in found.ways_in
        ],
    }


def _summarize(findings: Sequence[SecurityFinding], output: Output) -> None:
    if not findings:
        output.hint("\nNothing was found that a stranger could use.")
        return
    counts = Counter(each.severity for each in findings)
    told = [f"{counts[each]} {each}" for each in SEVERITIES if counts[each]]
    output.hint(f"\n{', '.join(told)}. docs/security.md says how a cluster is made safe.")

"""`odradek certificate`: the certificates of nodes that `odradek format --hardened` made.

Needs the bundle of the cluster, which has the key of its authority, and no running node. A running
node notices the new file by itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from odradek.node.cli.output import Output, with_output


@click.group()
def certificate() -> None:
    """Renew certificates of a hardened cluster."""


@certificate.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--from",
    "bundle",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The cluster.bundle of the node that was formatted first.  [default: the one in FOLDER]",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Another name or address for the certificate.",
)
@with_output
def renew(folder: Path, bundle: Path | None, names: tuple[str, ...], output: Output) -> None:
    """Give a node a new key and certificate.

    FOLDER is where it was formatted with --hardened.

    The names of the old certificate stay. A running node uses the new one within 5 s, for new
    connections.
    """
    from odradek.node.cluster_bundle import BUNDLE_NAME, read_bundle
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.hardened_node import renew_certificate

    try:
        renewed = renew_certificate(folder, read_bundle(bundle or folder / BUNDLE_NAME), names)
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(fault.faults)) from fault
    output.facts(
        {
            "node_id": renewed.node_id,
            "store": str(renewed.path),
            "certificate_names": ", ".join(renewed.names),
            "valid_until": renewed.valid_until,
        }
    )

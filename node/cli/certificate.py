"""`odradek certificate`: certificates of nodes that `odradek format --hardened` made, of their
authority, and the bundle from which further nodes are made.

Needs the bundle of the cluster, which has the key of its authority, and no running node. A running
node notices its new file by itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from odradek.node.cli.output import Output, with_output


@click.group()
def certificate() -> None:
    """Renew the certificates of a hardened cluster."""


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


@certificate.command()
@click.option(
    "--from",
    "bundle",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The cluster.bundle with the authority that is replaced.",
)
@click.option(
    "--into",
    required=True,
    type=click.Path(exists=False, path_type=Path),
    help="A new folder, for the new bundle and what clients need.",
)
@with_output
def new_authority(bundle: Path, into: Path, output: Output) -> None:
    """Make a new authority for a hardened cluster.

    Changes no node. Give clients the authority.pem of the new folder, which has both authorities;
    renew the certificate of each node with `certificate renew --from` the new bundle; then give
    clients authority-new.pem.
    """
    from odradek.node.cluster_bundle import read_bundle
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.hardened_node import replace_authority

    try:
        written = replace_authority(read_bundle(bundle), into)
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(fault.faults)) from fault
    output.facts(
        {
            "bundle": str(written.bundle),
            "for_clients_now": str(written.both),
            "for_clients_at_the_end": str(written.new),
        }
    )


@certificate.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--cluster-secret-file",
    "secret_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of cluster.secret.file of a node.",
)
@with_output
def update_bundle(bundle: Path, secret_file: Path, output: Output) -> None:
    """Give a cluster.bundle the present secret of the cluster.

    To be done after the secret was replaced: a node that is formatted from a bundle with the
    former secret is not let in by the others.
    """
    from odradek.node.bus.curve import cluster_keys
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.hardened_node import update_bundle as update

    try:
        updated = update(bundle, secret_file)
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(fault.faults)) from fault
    keys = cluster_keys(updated.cluster_secret.splitlines())
    output.facts(
        {
            "bundle": str(bundle),
            "cluster_id": updated.cluster_id,
            "secrets": ", ".join(each.fingerprint for each in keys),
        }
    )

"""`odradek format`: a folder becomes the data folder of one node.

With `--hardened` it also writes a configuration that is safe, with the keys that it needs
(hardened_node.py). What was formatted before is never changed.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from odradek.node.cli.output import Output, Row, with_output
from odradek.node.cli.passwords import read_password
from odradek.node.cli.profiles import profile_file, write_profile
from odradek.node.cli.serve import load_node, with_settings

if TYPE_CHECKING:
    from odradek.cluster.metadata.records import ScramCredentialChanged
    from odradek.node.cluster_bundle import ClusterBundle
    from odradek.node.config import NodeConfig
    from odradek.node.hardened_node import HardenedNode

R = TypeVar("R")

DEFAULT_ADDRESS = "localhost:9092"
DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_ADMIN = "admin"
PASSWORD_BYTES = 24
"""Of a password that is made here: more than anybody can try."""


@dataclass(frozen=True, slots=True)
class HardenedOptions:
    """The options of `--hardened`."""

    hardened: bool
    into: Path | None
    bundle: Path | None
    advertise: str | None
    listen: str | None
    names: tuple[str, ...]
    admin: str | None
    admin_password_file: str | None
    admin_password_env: str | None
    add_profile: str | None


def hardened_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a click command the options of `--hardened`, as one argument `hardened`."""

    @functools.wraps(command)
    def wrapper(**arguments: object) -> R:
        own = {each.name: arguments.pop(each.name) for each in fields(HardenedOptions)}
        return command(**arguments, hardened=HardenedOptions(**own))  # type: ignore[arg-type]  # click's

    options = (
        click.option(
            "--hardened",
            is_flag=True,
            help="Also write a configuration with TLS, SCRAM, ACLs that deny by default, and"
            " encryption between nodes, with all keys (docs/security.md).",
        ),
        click.option(
            "--into",
            type=click.Path(file_okay=False, path_type=Path),
            help="With --hardened: the folder for configuration and keys.",
        ),
        click.option(
            "--from",
            "bundle",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="With --hardened: the cluster.bundle of the node that was formatted first.",
        ),
        click.option(
            "--advertise",
            metavar="HOST:PORT",
            help="With --hardened: the address for clients, which is in the certificate."
            f"  [default: {DEFAULT_ADDRESS}, for this machine only]",
        ),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            help="With --hardened: where clients connect.  [default: the advertised port, on all"
            " addresses]",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="HOST",
            help="With --hardened: another name or address for the certificate.",
        ),
        click.option(
            "--admin",
            metavar="USER",
            help=f"With --hardened: the first user, a super user.  [default: {DEFAULT_ADMIN}]",
        ),
        click.option(
            "--admin-password-file",
            metavar="FILE",
            help="Its password is the first line of this file; - is standard input.  [default: a"
            " new one, which is shown once]",
        ),
        click.option(
            "--admin-password-env",
            metavar="NAME",
            help="Its password is in this environment variable.",
        ),
        click.option(
            "--add-profile",
            metavar="NAME",
            help="With --hardened: make `odradek -p NAME` connect as the first user.",
        ),
    )
    for option in reversed(options):
        wrapper = option(wrapper)
    return wrapper


@click.command("format")
@click.option(
    "--config", "-c", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node-id", type=click.IntRange(min=0), help="[default: 0]")
@click.option("--cluster-id", help="The same for every node of a cluster.  [default: a new one]")
@click.option("--stores", type=click.IntRange(min=1), help="Fixed for ever.  [default: 8]")
@click.option("--if-not-formatted", is_flag=True, help="A formatted folder is not an error.")
@click.option(
    "--add-scram",
    "scram_users",
    multiple=True,
    metavar="MECHANISM=[name=USER,password-file=FILE]",
    help="A user with which a new cluster begins, as SCRAM-SHA-512=[name=admin,password-file=FILE]"
    " or [name=admin,password-env=VARIABLE]; FILE - is standard input. The same on every node.",
)
@hardened_options
@with_settings
@with_output
def format_data(
    file: Path | None,
    data: Path | None,
    node_id: int | None,
    cluster_id: str | None,
    stores: int | None,
    if_not_formatted: bool,
    scram_users: tuple[str, ...],
    hardened: HardenedOptions,
    settings: tuple[tuple[str, str], ...],
    output: Output,
) -> None:
    """Make a folder the data folder of one node.

    What is in it already stays untouched. The number of stores bounds the number of workers and
    cannot be changed later.

    \b
    A node that is safe from its first start, and the others of its cluster:
    odradek format --hardened --into /etc/odradek --advertise a.example:9093 \\
        --set peers=0@10.0.0.1:9192,1@10.0.0.2:9192,2@10.0.0.3:9192
    odradek format --hardened --into /etc/odradek --advertise b.example:9093 \\
        --from cluster.bundle --node-id 1
    """
    from odradek.node.bootstrap_credentials import write_bootstrap_credentials
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.data_folder import (
        adopt_meta_properties,
        read_meta_properties,
        unformatted_log_dirs,
    )

    options = {"data": data, "node.id": node_id, "cluster.id": cluster_id, "stores": stores}
    if hardened.hardened:
        if file is not None or scram_users:
            raise click.UsageError("--hardened excludes --config and --add-scram.")
        chosen = dict(settings) | {k: str(v) for k, v in options.items() if v is not None}
        _format_hardened(hardened, chosen, if_not_formatted=if_not_formatted, output=output)
        return
    if any(getattr(hardened, each.name) for each in fields(hardened)):
        raise click.UsageError("Options of --hardened need --hardened.")
    config = load_node(file, os.environ, settings, options)
    credentials = _scram_credentials(scram_users)
    try:
        known = read_meta_properties(config.data_folder)
        new_log_dirs = unformatted_log_dirs(config)
        if known is not None and not new_log_dirs and not if_not_formatted:
            raise ConfigurationError(
                f"data={config.data}: this is the data folder of node {known.node_id} of cluster "
                f"{known.cluster_id} already; choose another, or pass --if-not-formatted"
            )
        config = adopt_meta_properties(config, formats=True, replaces=not if_not_formatted)
        if credentials and known is None:
            write_bootstrap_credentials(config.data_folder, credentials)
    except ConfigurationError as fault:
        raise click.ClickException(str(fault)) from fault
    added = any(each.path in new_log_dirs and not each.problem for each in config.log_dirs)
    output.facts({**_facts(config), "formatted": known is None or added})


def _facts(config: NodeConfig) -> Row:
    return {
        "data": config.data,
        "cluster_id": config.cluster_id,
        "node_id": config.node_id,
        "stores": config.store_count,
        "log_dirs": ",".join(each.path for each in config.log_dirs),
    }


def _format_hardened(
    options: HardenedOptions,
    settings: Mapping[str, str],
    *,
    if_not_formatted: bool,
    output: Output,
) -> None:
    """`settings` are those of --set and of the options that are settings of a node."""
    from odradek.node.config_sources import ConfigurationError
    from odradek.node.hardened_node import CLIENT_NAME, format_hardened, formatted_already

    node = _hardened_node(options, settings)
    if options.add_profile is not None and profile_file(options.add_profile).exists():
        raise click.ClickException(f"there is a profile {options.add_profile}; choose another name")
    try:
        present = formatted_already(node)
        if present is not None and not if_not_formatted:
            raise ConfigurationError(present)
        if present is not None:
            output.facts({"data": str(node.data), "node_id": node.node_id, "formatted": False})
            return
        bundle, password = _bundle(options, settings)
        config = format_hardened(node, bundle, password)
    except ConfigurationError as fault:
        raise click.ClickException("\n  ".join(fault.faults)) from fault
    told: dict[str, str | int | bool | None] = {
        **_facts(config),  # type: ignore[dict-item]  # texts and numbers
        "formatted": True,
        "config": str(node.folder / "node.toml"),
        "certificate_names": ", ".join(node.certificate_names),
    }
    if password is not None:
        told |= {"bundle": str(node.folder / "cluster.bundle"), "admin": bundle.admin}
        if options.admin_password_file is None and options.admin_password_env is None:
            told["admin_password"] = password
        told["client_config"] = str(node.folder / CLIENT_NAME)
    if password is not None and options.add_profile is not None:
        told["profile"] = _add_profile(options.add_profile, node, bundle, password)
    output.facts(told)
    _say_what_is_next(options, node, output)


def _hardened_node(options: HardenedOptions, settings: Mapping[str, str]) -> HardenedNode:
    from odradek.cluster.metadata.listener_addresses import parse_host_and_port
    from odradek.node.hardened_node import HardenedNode

    if options.into is None:
        raise click.UsageError("--hardened needs --into FOLDER, for configuration and keys.")
    own = dict(settings)
    if options.bundle is not None and "node.id" not in own:
        raise click.UsageError("--from needs --node-id: 0 is that of the first node.")
    node_id = own.pop("node.id", "0")
    advertise = options.advertise or DEFAULT_ADDRESS
    listen = options.listen
    for text, option in ((advertise, "--advertise"), (listen or ":0", "--listen")):
        try:
            host, port = parse_host_and_port(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=option) from None
        if option == "--advertise" and (not host or not port):
            raise click.BadParameter(
                f"{text!r} must have a host and a port that clients can use", param_hint=option
            )
    if listen is None:
        port_text = advertise.rpartition(":")[2]
        listen = DEFAULT_LISTEN if options.advertise is None else f":{port_text}"
    if not node_id.isdecimal():
        raise click.UsageError("--hardened needs a number as node.id.")
    folder = options.into.expanduser().absolute()
    for shared in ("cluster.id", "peers", "stores"):
        if options.bundle is not None and shared in own:
            raise click.UsageError(f"{shared} comes from the bundle; leave it out.")
    data = Path(own.pop("data", folder / "data")).expanduser().absolute()
    own.pop("cluster.id", None)
    own.pop("peers", None)
    own.pop("stores", None)
    return HardenedNode(
        folder=folder,
        data=data,
        node_id=int(node_id),
        advertise=advertise,
        listen=listen,
        names=options.names,
        settings=own,
    )


def _bundle(
    options: HardenedOptions, settings: Mapping[str, str]
) -> tuple[ClusterBundle, str | None]:
    """The cluster's bundle and, if it is a new one, the password of its first user."""
    from odradek.node.cluster_bundle import read_bundle
    from odradek.node.hardened_node import new_bundle

    file, variable = options.admin_password_file, options.admin_password_env
    if options.bundle is not None:
        if options.admin or file or variable or options.add_profile:
            raise click.UsageError(
                "--from has the first user already: --admin and --add-profile are for the first"
                " node. `odradek profile add NAME --client-config FILE` adds a profile."
            )
        bundle = read_bundle(options.bundle)
        if "peers" not in bundle.settings and "join" not in settings:
            raise click.UsageError(
                "The first node was formatted without peers, so this one joins it: --set"
                " join=HOST:PORT and --set peer.listen=HOST:PORT. The first one needs peer.listen."
            )
        return bundle, None
    admin = options.admin or DEFAULT_ADMIN
    if file is None and variable is None:
        password = secrets.token_urlsafe(PASSWORD_BYTES)
    else:
        password = read_password(f"password of {admin}", file, variable)
    return new_bundle(admin, password, settings), password


def _add_profile(name: str, node: HardenedNode, bundle: ClusterBundle, password: str) -> str:
    from odradek.node.hardened_node import client_properties

    write_profile(name, client_properties(node, bundle, password))
    return name


def _say_what_is_next(options: HardenedOptions, node: HardenedNode, output: Output) -> None:
    config = node.folder / "node.toml"
    output.hint(f"\nStart it:\n  odradek node start --config {config}")
    if options.bundle is not None:
        output.hint(f"Remove {options.bundle} from this machine if it is not needed here.")
        return
    client = (
        f"odradek -p {options.add_profile}"
        if options.add_profile
        else f"odradek --client-config {node.folder / 'admin.properties'}"
    )
    output.hint(f"Connect:\n  {client} cluster status")
    output.hint(
        f"{node.folder / 'cluster.bundle'} makes nodes and certificates of this cluster: move it to"
        " a safe place. The password is not shown again."
    )


def _scram_credentials(arguments: tuple[str, ...]) -> list[ScramCredentialChanged]:
    """The credentials of --add-scram. Raises UsageError, and ClickException if a password cannot be
    read."""
    from odradek.node.bootstrap_credentials import credential_record, parse_add_scram

    records = []
    for text in arguments:
        try:
            argument = parse_add_scram(text)
        except ValueError as error:
            raise click.UsageError(f"--add-scram: {error}") from None
        password = read_password(
            f"password of {argument.name}", argument.password_file, argument.password_env
        )
        records.append(credential_record(argument, password))
    if len({(record.user, record.mechanism) for record in records}) < len(records):
        raise click.UsageError("--add-scram: a user is named twice for one mechanism.")
    return records

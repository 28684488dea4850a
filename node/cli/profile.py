"""`odradek profile`: names for clusters, with the properties to connect to them.

`odradek -p NAME topic list` then needs no addresses and no passwords.
"""

from __future__ import annotations

from pathlib import Path

import click

from odradek.node.cli.connection import make_connection, parse_properties
from odradek.node.cli.output import Output, Row, with_output
from odradek.node.cli.passwords import password_options, read_password
from odradek.node.cli.profiles import (
    BOOTSTRAP,
    SECRETS,
    no_such_profile,
    profile_file,
    profile_names,
    read_profile,
    write_profile,
)


@click.group()
def profile() -> None:
    """Name clusters, for `odradek -p NAME`."""


@profile.command()
@click.argument("name")
@click.option("--bootstrap", "-b", metavar="HOST[:PORT][,...]", help="Some brokers of the cluster.")
@click.option(
    "--property",
    "-X",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A librdkafka client property, but no password.",
)
@click.option(
    "--client-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of client properties, one KEY=VALUE a line; it may have passwords.",
)
@click.option("--replace", is_flag=True, help="Replace a profile of that name.")
@password_options
@with_output
def add(
    output: Output,
    name: str,
    bootstrap: str | None,
    properties: tuple[str, ...],
    client_config: Path | None,
    replace: bool,
    password_file: str | None,
    password_env: str | None,
) -> None:
    """Add a profile. Asks for the password if sasl.username is set and sasl.password is not.

    \b
    odradek profile add prod -b broker:9093 -X security.protocol=SASL_SSL \\
        -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=alice
    odradek -p prod topic list
    """
    file = profile_file(name)
    if file.exists() and not replace:
        raise click.ClickException(f"there is a profile {name}; --replace replaces it")
    merged: dict[str, str] = {}
    if client_config is not None:
        lines = client_config.read_text(encoding="utf-8").splitlines()
        merged |= parse_properties(lines, f"in {client_config}")
    named = parse_properties(properties, "given with -X")
    for key in sorted(SECRETS & named.keys()):
        raise click.UsageError(
            f"{key} would stay in the history of the shell. Put it into a file for --client-config,"
            " or leave sasl.password out and be asked for it."
        )
    merged |= named
    if bootstrap is not None:
        merged[BOOTSTRAP] = bootstrap
    if BOOTSTRAP not in merged:
        raise click.UsageError("Name the brokers: -b HOST:PORT, or bootstrap.servers in the file.")
    wants_password = "sasl.username" in merged and "sasl.password" not in merged
    if wants_password or password_file is not None or password_env is not None:
        what = f"password of {merged.get('sasl.username', name)}"
        merged["sasl.password"] = read_password(what, password_file, password_env)
    # A profile that cannot work is refused now, not when it is used.
    checked = {key: value for key, value in merged.items() if key != BOOTSTRAP}
    make_connection(merged[BOOTSTRAP], 1.0, None, (), checked).prepare()
    written = write_profile(name, merged)
    output.done(f"added profile {name}: {written}", {"profile": name, "file": str(written)})


@profile.command("list")
@with_output
def list_profiles(output: Output) -> None:
    """List profiles, without their passwords."""
    rows: list[Row] = []
    for name in profile_names():
        found = read_profile(name)
        rows.append(
            {
                "profile": name,
                "bootstrap": found.get(BOOTSTRAP, ""),
                "protocol": found.get("security.protocol", "PLAINTEXT").upper(),
                "mechanism": found.get("sasl.mechanism") or found.get("sasl.mechanisms") or "",
                "user": found.get("sasl.username", ""),
            }
        )
    columns = ("profile", "bootstrap", "protocol", "mechanism", "user")
    output.rows(rows, columns, empty="There is no profile. `odradek profile add` makes one.")


@profile.command()
@click.argument("name")
@with_output
def remove(output: Output, name: str) -> None:
    """Remove a profile."""
    try:
        profile_file(name).unlink()
    except FileNotFoundError:
        raise no_such_profile(name) from None
    output.done(f"removed profile {name}", {"profile": name})

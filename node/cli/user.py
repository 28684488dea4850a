"""`odradek user`: the SCRAM credentials of a cluster (KIP-554).

The password is salted here. The cluster gets the salted password and keeps keys that prove it.
"""

from __future__ import annotations

import secrets

import click

from odradek.cluster.metadata.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_RANDOM_BYTES,
    SCRAM_MECHANISMS,
    ScramMechanism,
    salt_of,
    salted_password,
)
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.output import Output, Row
from odradek.node.cli.passwords import password_options, read_password
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

with_mechanisms = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(SCRAM_MECHANISMS), case_sensitive=False),
    help="May be given twice.  [default: both]",
)


@click.group()
def user() -> None:
    """List, add and remove users who authenticate with SCRAM."""


@user.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@with_client
def list_users(client: ClusterClient, output: Output, names: tuple[str, ...]) -> None:
    """List users with their mechanisms."""
    rows: list[Row] = [
        {
            "user": described.user,
            "mechanism": ScramMechanism(each.mechanism).sasl_name,
            "iterations": each.iterations,
        }
        for described in sorted(_describe(client, names), key=lambda described: described.user)
        for each in sorted(described.credential_infos, key=lambda each: each.mechanism)
    ]
    output.rows(rows, ("user", "mechanism", "iterations"), empty="No user has a SCRAM credential.")


@user.command()
@click.argument("name")
@with_mechanisms
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed.",
)
@password_options
@with_client
def add(
    client: ClusterClient,
    output: Output,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: str | None,
    password_env: str | None,
) -> None:
    """Set the password of a user, who need not exist. Asks for the password on a terminal."""
    password = read_password(f"password of {name}", password_file, password_env)
    chosen = _chosen(mechanisms)
    for mechanism in chosen:
        salt = salt_of(secrets.token_bytes(SALT_RANDOM_BYTES))
        salted = salted_password(mechanism, password, salt, iterations)
        # One request for each: a Kafka takes one change of a user in a request.
        _alter(
            client,
            name,
            AlterUserScramCredentialsRequest(
                upsertions=[
                    ScramCredentialUpsertion(
                        name=name,
                        mechanism=mechanism,
                        iterations=iterations,
                        salt=salt,
                        salted_password=salted,
                    )
                ]
            ),
        )
    texts = [mechanism.sasl_name for mechanism in chosen]
    output.done(
        f"{name} can authenticate with {', '.join(texts)}", {"user": name, "mechanisms": texts}
    )


@user.command()
@click.argument("name")
@with_mechanisms
@with_client
def remove(client: ClusterClient, output: Output, name: str, mechanisms: tuple[str, ...]) -> None:
    """Remove credentials of a user.

    Connections that the user has stay, until they have to authenticate again
    (connections.max.reauth.ms).
    """
    if mechanisms:
        chosen = _chosen(mechanisms)
    else:
        (described,) = _describe(client, (name,))
        chosen = [ScramMechanism(each.mechanism) for each in described.credential_infos]
    for mechanism in chosen:
        deletion = ScramCredentialDeletion(name=name, mechanism=mechanism)
        _alter(client, name, AlterUserScramCredentialsRequest(deletions=[deletion]))
    texts = [mechanism.sasl_name for mechanism in chosen]
    output.done(
        f"{name} can authenticate with {', '.join(texts)} no longer",
        {"user": name, "mechanisms": texts},
    )


def _chosen(mechanisms: tuple[str, ...]) -> list[ScramMechanism]:
    names = dict.fromkeys(name.upper() for name in mechanisms) or SCRAM_MECHANISMS
    return [SCRAM_MECHANISMS[name] for name in names]


def _describe(
    client: ClusterClient, names: tuple[str, ...]
) -> list[DescribeUserScramCredentialsResult]:
    """The credentials of these users, or of all; ClickException if one has none."""
    users = [UserName(name=name) for name in dict.fromkeys(names)]
    answer = client.ask(DescribeUserScramCredentialsRequest(users=users or None))
    raise_on_error(answer, "users")
    for described in answer.results:
        if described.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            raise click.ClickException(f"user {described.user!r} has no SCRAM credential")
        raise_on_error(described, f"user {described.user!r}")
    return answer.results


def _alter(client: ClusterClient, name: str, request: AlterUserScramCredentialsRequest) -> None:
    for result in client.ask(request).results:
        raise_on_error(result, f"user {name!r}")

"""`odradek token`: the delegation tokens of a cluster, ours or Kafka's (KIP-48, KIP-373).

The HMAC of a token is as good as a password: `create` shows it once or writes it to a file, and no
argument takes it. Who may renew or expire a token may also ask the cluster for its HMAC, so the
commands for that take a token's id as well.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.output import Output, Row
from odradek.node.cli.parameters import duration, moment_text, principal
from odradek.node.cli.passwords import read_secret, secret_options
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)

AS_CONFIGURED: Final = -1
"""A period: what the cluster allows."""
AT_ONCE: Final = -1
"""A period until a token expires: it is removed."""
_COLUMNS: Final = (
    "token",
    "owner",
    "requester",
    "renewers",
    "issued",
    "expires",
    "renewable_until",
)

hmac_options = secret_options("hmac", "HMAC")
token_argument = click.argument("token_id", metavar="[TOKEN]", required=False)


@click.group()
def token() -> None:
    """List, create, renew and expire delegation tokens.

    For users who have authenticated, and not with a token. A client with a token authenticates with
    SCRAM: the token is its user name, the HMAC its password, and tokenauth=true is in its JAAS
    configuration.
    """


@token.command("list")
@click.option(
    "--owner",
    "owners",
    multiple=True,
    type=principal,
    metavar="PRINCIPAL",
    help="Only tokens of this principal: User:NAME, or NAME for short.",
)
@with_client
def list_tokens(client: ClusterClient, output: Output, owners: tuple[str, ...]) -> None:
    """List your tokens, and others that you may describe. HMACs are not shown."""
    found = _described(client, [_message(owner) for owner in owners] or None)
    rows = [_row(each) for each in sorted(found, key=lambda each: each.issue_timestamp)]
    output.rows(rows, _COLUMNS, empty="There are no delegation tokens that you may see.")


@token.command()
@click.option(
    "--owner",
    type=principal,
    metavar="PRINCIPAL",
    help="Whose token it is: User:NAME, or NAME for short.  [default: yours]",
)
@click.option(
    "--renewer",
    "renewers",
    multiple=True,
    type=principal,
    metavar="PRINCIPAL",
    help="Who else may renew and expire it.",
)
@click.option(
    "--max-lifetime",
    type=duration,
    metavar="DURATION",
    help="How long it can be renewed, as in 12h.  [default: what the cluster allows]",
)
@click.option(
    "--hmac-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file for the HMAC, which only you can read. Without it the HMAC is shown.",
)
@with_client
def create(
    client: ClusterClient,
    output: Output,
    owner: str | None,
    renewers: tuple[str, ...],
    max_lifetime: int | None,
    hmac_file: Path | None,
) -> None:
    """Create a token.

    \b
    odradek token create --hmac-file token.hmac
    odradek token create --owner alice --renewer scheduler --max-lifetime 12h
    """
    request = CreateDelegationTokenRequest(
        renewers=[_message(renewer) for renewer in renewers],
        max_lifetime_ms=AS_CONFIGURED if max_lifetime is None else max_lifetime,
    )
    if owner is not None:
        request.owner_principal_type, _, request.owner_principal_name = owner.partition(":")
    if hmac_file is None:
        answer = _created(client, request)
        output.facts({**_facts(answer), "hmac": _hmac_text(answer)})
        return
    # Before the token: without a file for its HMAC it would be of no use.
    descriptor = _new_file(hmac_file)
    try:
        answer = _created(client, request)
        _write(descriptor, f"{_hmac_text(answer)}\n", answer.token_id)
    except BaseException:
        hmac_file.unlink()
        raise
    finally:
        os.close(descriptor)
    output.facts({**_facts(answer), "hmac_file": str(hmac_file)})


@token.command()
@token_argument
@hmac_options
@click.option(
    "--for",
    "period",
    type=duration,
    metavar="DURATION",
    help="How long it is valid from now on, as in 12h.  [default: what the cluster allows]",
)
@with_client
def renew(
    client: ClusterClient,
    output: Output,
    token_id: str | None,
    hmac_file: str | None,
    hmac_env: str | None,
    period: int | None,
) -> None:
    """Move the end of a token that you own or may renew.

    Without TOKEN it is the token that an HMAC belongs to; asks for that on a terminal.
    """
    answer = client.ask(
        RenewDelegationTokenRequest(
            hmac=_hmac_of(client, token_id, hmac_file, hmac_env),
            renew_period_ms=AS_CONFIGURED if period is None else period,
        )
    )
    raise_on_error(answer, token_id or "token")
    expires = moment_text(answer.expiry_timestamp_ms)
    output.done(f"the token expires {expires}", {"token": token_id, "expires": expires})


@token.command()
@token_argument
@hmac_options
@click.option(
    "--in",
    "period",
    type=duration,
    metavar="DURATION",
    help="When it expires, as in 12h.  [default: it is removed now]",
)
@with_client
def expire(
    client: ClusterClient,
    output: Output,
    token_id: str | None,
    hmac_file: str | None,
    hmac_env: str | None,
    period: int | None,
) -> None:
    """End a token that you own or may renew.

    Without TOKEN it is the token that an HMAC belongs to; asks for that on a terminal. Connections
    that authenticated with the token stay until it would have expired.
    """
    answer = client.ask(
        ExpireDelegationTokenRequest(
            hmac=_hmac_of(client, token_id, hmac_file, hmac_env),
            expiry_time_period_ms=AT_ONCE if period is None else period,
        )
    )
    raise_on_error(answer, token_id or "token")
    expires = moment_text(answer.expiry_timestamp_ms)
    text = "the token is removed" if period is None else f"the token expires {expires}"
    output.done(text, {"token": token_id, "expires": expires, "is_removed": period is None})


def _message(text: str) -> TokenPrincipal:
    kind, _, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name)


def _described(
    client: ClusterClient, owners: list[TokenPrincipal] | None
) -> list[DescribedDelegationToken]:
    """The tokens of these owners, or of all, that the client may see."""
    answer = client.ask(DescribeDelegationTokenRequest(owners=owners))
    raise_on_error(answer, "tokens")
    return answer.tokens


def _row(each: DescribedDelegationToken) -> Row:
    requester = f"{each.token_requester_principal_type}:{each.token_requester_principal_name}"
    return {
        "token": each.token_id,
        "owner": f"{each.principal_type}:{each.principal_name}",
        # Older brokers do not tell.
        "requester": None if requester == ":" else requester,
        "renewers": [f"{by.principal_type}:{by.principal_name}" for by in each.renewers],
        "issued": moment_text(each.issue_timestamp),
        "expires": moment_text(each.expiry_timestamp),
        "renewable_until": moment_text(each.max_timestamp),
    }


def _facts(answer: CreateDelegationTokenResponse) -> dict[str, str | None]:
    return {
        "token": answer.token_id,
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "expires": moment_text(answer.expiry_timestamp_ms),
        "renewable_until": moment_text(answer.max_timestamp_ms),
    }


def _created(
    client: ClusterClient, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    answer = client.ask(request)
    raise_on_error(answer, "the token could not be created")
    return answer


def _hmac_text(answer: CreateDelegationTokenResponse) -> str:
    """As clients give it for a password."""
    return base64.b64encode(answer.hmac).decode()


def _new_file(path: Path) -> int:
    """A descriptor of a file that only its owner can read."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"cannot create {path}: {error.strerror}") from error


def _write(descriptor: int, text: str, token_id: str) -> None:
    try:
        with os.fdopen(descriptor, "w", closefd=False) as stream:
            stream.write(text)
    except OSError as error:
        raise click.ClickException(
            f"the HMAC cannot be written: {error.strerror}. Remove the token with"
            f" `odradek token expire {token_id}`."
        ) from error


def _hmac_of(
    client: ClusterClient, token_id: str | None, file: str | None, variable: str | None
) -> bytes:
    """The HMAC of the token that the command names. Raises UsageError and ClickException."""
    if token_id is not None:
        if file is not None or variable is not None:
            raise click.UsageError("Give TOKEN or its HMAC, not both.")
        for each in _described(client, None):
            if each.token_id == token_id:
                return bytes(each.hmac)
        raise click.ClickException(f"{token_id}: no such delegation token that you may see")
    text = read_secret("HMAC", file, variable, name="hmac", is_new=False)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise click.ClickException("the HMAC is not base64") from None

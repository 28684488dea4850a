"""The SCRAM credentials with which a new cluster begins: those of `odradek format --add-scram`.

Without them nobody could authenticate to add the first user. `format` writes them into the data
folder, as records; the first controller of a new cluster puts them into its log. The file has keys
that prove passwords, never a password. Every node that may become that controller needs the file.
"""

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from odradek.cluster.metadata.records import (
    Record,
    ScramCredentialChanged,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_RANDOM_BYTES,
    SCRAM_MECHANISMS,
    ScramMechanism,
    credential_of,
    salt_of,
    salted_password,
)
from odradek.node.config_sources import ConfigurationError

FILE_NAME: Final = "bootstrap.records"
_ARGUMENT: Final = re.compile(r"(?P<mechanism>[A-Za-z0-9-]+)=\[(?P<options>.*)\]", re.DOTALL)
_FORM: Final = "MECHANISM=[name=USER,password-file=FILE] or [name=USER,password-env=VARIABLE]"


class ScramUserArgument(NamedTuple):
    """One --add-scram: a user, and where the password is."""

    mechanism: ScramMechanism
    name: str
    iterations: int
    password_file: str | None
    password_env: str | None


def parse_add_scram(text: str) -> ScramUserArgument:
    """The argument of --add-scram, as in kafka-storage.sh but for the secret. Raises ValueError;
    the message does not show the argument, in which somebody may have written a password."""
    matched = _ARGUMENT.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"it must have the form {_FORM}")
    mechanism = SCRAM_MECHANISMS.get(matched["mechanism"].upper())
    if mechanism is None:
        raise ValueError(f"the mechanism must be one of {', '.join(SCRAM_MECHANISMS)}")
    options = dict(_option(part) for part in matched["options"].split(","))
    for secret in ("password", "saltedpassword", "salt"):
        if secret in options:
            raise ValueError(
                f"{secret} on a command line can be read by every user of the machine. Use"
                " password-file or password-env."
            )
    name, iterations = options.pop("name", ""), options.pop("iterations", str(ITERATIONS_MIN))
    file, variable = options.pop("password-file", None), options.pop("password-env", None)
    if options or not name or (file is None) == (variable is None):
        raise ValueError(f"it must have the form {_FORM}")
    if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise ValueError(f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return ScramUserArgument(mechanism, name, int(iterations), file, variable)


def credential_record(argument: ScramUserArgument, password: str) -> ScramCredentialChanged:
    """The record of a user with this password, with a new salt."""
    salt = salt_of(secrets.token_bytes(SALT_RANDOM_BYTES))
    salted = salted_password(argument.mechanism, password, salt, argument.iterations)
    credential = credential_of(argument.mechanism, salted, salt, argument.iterations)
    return ScramCredentialChanged(argument.name, argument.mechanism, credential)


def write_bootstrap_credentials(folder: Path, records: Iterable[ScramCredentialChanged]) -> None:
    """Write the file; only this user can read it. Raises ConfigurationError."""
    try:
        file = os.open(
            folder / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(file, "wb") as stream:
            stream.write(encode_records(tuple(records)))
            stream.flush()
            os.fsync(file)
    except OSError as error:
        raise ConfigurationError(f"Cannot write {folder / FILE_NAME}: {error.strerror}") from error


def read_bootstrap_credentials(folder: Path) -> tuple[Record, ...]:
    """What `format` wrote; empty if it wrote nothing. Raises ConfigurationError."""
    path = folder / FILE_NAME
    try:
        return tuple(decode_records(path.read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot read {path}: {error}. Format the node again, or remove the file."
        ) from error


def _option(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return name, value

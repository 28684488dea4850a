"""Profiles: named addresses and properties of clusters, in files that only this user can read.

Each is a file of Kafka's client properties, `bootstrap.servers` among them, in the user's folder of
configurations. One invariant: a profile that others can read is not used, because it may have
passwords. Called by connection.py and profile.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

BOOTSTRAP: Final = "bootstrap.servers"
SECRETS: Final = frozenset(
    {"sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"}
)
"""Properties that are never taken from the command line."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ENDING: Final = ".properties"


def profiles_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """$ODRADEK_PROFILES, or odradek/profiles in the user's folder of configurations."""
    own = environment.get("ODRADEK_PROFILES")
    if own:
        return Path(own)
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "odradek" / "profiles"


def profile_names() -> list[str]:
    """The names of all profiles, in order."""
    try:
        files = sorted(profiles_folder().iterdir())
    except OSError:
        return []
    return [file.name.removesuffix(_ENDING) for file in files if file.name.endswith(_ENDING)]


def profile_file(name: str) -> Path:
    """The file of a profile, which need not exist; a usage error if it can have no such name."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} must be up to 64 letters, digits, dots, dashes or underscores",
            param_hint="the name of a profile",
        )
    return profiles_folder() / f"{name}{_ENDING}"


def read_profile(name: str) -> dict[str, str]:
    """The properties of a profile. ClickException if there is none, or others can read it."""
    file = profile_file(name)
    try:
        status, text = file.stat(), file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise no_such_profile(name) from None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"profile {name}: {file} cannot be read: {error}") from error
    if status.st_mode & 0o077:
        raise click.ClickException(
            f"profile {name}: others can read {file}, which may have passwords. Run `chmod 600"
            f" {file}`."
        )
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_profile(name: str, properties: Mapping[str, str]) -> Path:
    """Write the properties, in place of a profile of that name; returns its file."""
    file = profile_file(name)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.writelines(f"{key}={value}\n" for key, value in sorted(properties.items()))
    fresh.rename(file)
    return file


def no_such_profile(name: str) -> click.ClickException:
    """The error for a name that no profile has, with the nearest one."""
    near = get_close_matches(name, profile_names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ". `odradek profile add` makes one."
    return click.ClickException(f"{name}: no such profile{hint}")

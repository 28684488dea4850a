"""Values from elsewhere: `${provider:path:key}` in a setting, as in Kafka (KIP-297, KIP-421).

`config.providers` names providers, `config.providers.NAME.class` says what each is:

    EnvVarConfigProvider      ${env:NAME}              an environment variable (KIP-887)
    FileConfigProvider        ${file:PATH:KEY}         a key of a properties file
    DirectoryConfigProvider   ${directory:PATH:FILE}   a file's content, as of a mounted secret

Unlike in Kafka, what cannot be found is an error of the configuration, and not the text itself.
Called when a configuration is read; a change of what it refers to takes effect at the next reading.
Invariant: no error shows a value that was looked up.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from odradek.node.config_sources import ConfigurationError, Setting, from_properties

PROVIDERS: Final = "config.providers"
_PREFIX: Final = "config.providers."
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""Of org.apache.kafka.common.config.ConfigTransformer."""
_PACKAGE: Final = "org.apache.kafka.common.config.provider."

Lookup = Callable[[str, str], str]
"""(path, key) -> value; raises LookupError or OSError."""


def resolve(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> dict[str, Setting]:
    """The settings with all references replaced, without those of the providers themselves. Raises
    ConfigurationError with all errors."""
    faults: list[str] = []
    lookups = _lookups(settings, environment, faults)
    resolved = {}
    for key, setting in settings.items():
        if key == PROVIDERS or key.startswith(_PREFIX):
            continue
        try:
            text = _REFERENCE.sub(lambda found: _replaced(found, lookups), setting.text)
        except (LookupError, OSError, UnicodeDecodeError) as error:
            faults.append(f"{key}: {_reason(error)} ({setting.origin})")
        else:
            resolved[key] = Setting(text, setting.origin)
    if faults:
        raise ConfigurationError(*faults)
    return resolved


def _replaced(found: re.Match[str], lookups: Mapping[str, Lookup]) -> str:
    lookup = lookups.get(found[1])
    return found[0] if lookup is None else lookup(found[2] or "", found[3])


def _lookups(
    settings: Mapping[str, Setting], environment: Mapping[str, str], faults: list[str]
) -> dict[str, Lookup]:
    lookups: dict[str, Lookup] = {}
    written = settings.get(PROVIDERS, Setting("", ""))
    names = [name.strip() for name in written.text.split(",") if name.strip()]
    for name in names:
        prefix = f"{_PREFIX}{name}."
        own = {
            key.removeprefix(prefix): setting
            for key, setting in settings.items()
            if key.startswith(prefix)
        }
        kind = own.pop("class", None)
        if kind is None:
            faults.append(f"{prefix}class is missing ({written.origin})")
            continue
        make = _KINDS.get(kind.text.removeprefix(_PACKAGE))
        if make is None:
            known = ", ".join(_PACKAGE + each for each in _KINDS)
            faults.append(f"{prefix}class={kind.text} is none of {known} ({kind.origin})")
            continue
        make_lookup, parameter = make
        limit = own.pop(f"param.{parameter}", None)
        faults += [
            f"{prefix}{rest} is no parameter of {kind.text}: it has {parameter} ({each.origin})"
            for rest, each in own.items()
        ]
        try:
            lookups[name] = make_lookup(None if limit is None else limit.text, environment)
        except ValueError as error:
            faults.append(f"{prefix}param.{parameter}: {error}")
    for key, setting in settings.items():
        if key.startswith(_PREFIX) and key.removeprefix(_PREFIX).partition(".")[0] not in names:
            faults.append(f"{key}: {PROVIDERS} does not name this provider ({setting.origin})")
    return lookups


def _environment_lookup(limit: str | None, environment: Mapping[str, str]) -> Lookup:
    try:
        allowed = re.compile(limit or ".*")
    except re.error as error:
        raise ValueError(f"{limit!r} is no regular expression: {error}") from error

    def lookup(path: str, key: str) -> str:
        if path:
            raise LookupError("an environment variable has no path: write ${NAME:VARIABLE}")
        if not allowed.fullmatch(key) or key not in environment:
            raise LookupError(f"there is no environment variable {key}, or it is not allowed")
        return environment[key]

    return lookup


def _file_lookup(limit: str | None, _environment: Mapping[str, str]) -> Lookup:
    allowed = _allowed_paths(limit)

    def lookup(path: str, key: str) -> str:
        file = allowed(path)
        text = file.read_text(encoding="utf-8")
        try:
            found = from_properties(text, file).get(key)
        except ConfigurationError:
            # Its text shows the line, which may be a secret.
            raise LookupError(f"{file} has lines that are not of the form key=value") from None
        if found is None:
            raise LookupError(f"{file} has no {key}")
        return found.text

    return lookup


def _directory_lookup(limit: str | None, _environment: Mapping[str, str]) -> Lookup:
    allowed = _allowed_paths(limit)

    def lookup(path: str, key: str) -> str:
        if not key or "/" in key:
            raise LookupError(f"{key!r} is no name of a file")
        return (allowed(path) / key).read_text(encoding="utf-8")

    return lookup


_KINDS: Final[Mapping[str, tuple[Callable[[str | None, Mapping[str, str]], Lookup], str]]] = {
    "EnvVarConfigProvider": (_environment_lookup, "allowlist.pattern"),
    "FileConfigProvider": (_file_lookup, "allowed.paths"),
    "DirectoryConfigProvider": (_directory_lookup, "allowed.paths"),
}
"""By class: what makes the lookup, and the one parameter that it takes."""


def _allowed_paths(limit: str | None) -> Callable[[str], Path]:
    folders = [Path(each.strip()) for each in (limit or "").split(",") if each.strip()]
    for folder in folders:
        if not folder.is_absolute():
            raise ValueError(f"{folder} is no absolute path")

    def check(path: str) -> Path:
        if not path:
            raise LookupError("it has no path: write ${NAME:PATH:KEY}")
        # Without `..`, but with links, as those of mounted secrets.
        found = Path(path)
        if ".." in found.parts:
            raise LookupError(f"{path} has ..")
        if folders and not any(found.is_relative_to(folder) for folder in folders):
            raise LookupError(f"{path} is not below one of the allowed.paths")
        return found

    return check


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot read {error.filename}: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return "the file is not UTF-8 text"
    return str(error.args[0]) if error.args else repr(error)

"""The sources of settings: a file, the environment, the command line.

Each source is read into key -> `Setting(text, origin)`, with keys named as in Kafka (`node.id`,
`log.retention.ms`). Later sources win. config.py parses the texts; its errors name the origin. The
only I/O is to read the one file.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ENVIRONMENT_PREFIX = "ODRADEK_"
_FILE_SUFFIX: Final = "_FILE"
SECRET_FILE: Final = "cluster.secret.file"
"""A setting of its own: the node follows this file."""
_UNDERSCORES: Final = "._-"
"""What one, two and three underscores in the name of an environment variable stand for."""
_UNDERSCORES_OF: Final = {letter: "_" * count for count, letter in enumerate(_UNDERSCORES, 1)}

# As Java has it: the first equals sign or colon ends the key.
_TOML_LINE = re.compile(
    r"""\s*(?P<table>\[)?\s*(?P<name>[\w"'-]+(?:\s*\.\s*[\w"'-]+)*)\s*(?(table)\]|=)"""
)
_PROPERTY = re.compile(r"(?P<key>[^\s=:]+)\s*[=:]\s*(?P<value>.*)")

SYNONYMS: Mapping[str, str] = {
    "broker.id": "node.id",
    "log.dir": "data",
    "data.dir": "data",
}
"""Other names for settings of ours; most are Kafka's."""


class Setting(NamedTuple):
    """A value as it was written, and its origin."""

    text: str
    origin: str


class ConfigurationError(ValueError):
    """The configuration is not valid: one sentence for each error, with key, value and remedy."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def merge(*sources: Mapping[str, Setting]) -> dict[str, Setting]:
    """All settings under their canonical names; the last source wins."""
    return {
        SYNONYMS.get(key, key): setting for source in sources for key, setting in source.items()
    }


def chains(*sources: Mapping[str, Setting]) -> dict[str, tuple[Setting, ...]]:
    """Every value of each key by its canonical name, the strongest first."""
    found: dict[str, tuple[Setting, ...]] = {}
    for source in sources:
        for key, setting in source.items():
            name = SYNONYMS.get(key, key)
            found[name] = (setting, *found.get(name, ()))
    return found


def environment_name(key: str) -> str:
    """The environment variable that sets a key, spelled as in Apache Kafka's container image."""
    spelled = "".join(_UNDERSCORES_OF.get(letter, letter) for letter in key)
    return ENVIRONMENT_PREFIX + spelled.upper()


def from_environment(
    environment: Mapping[str, str] = os.environ,
    is_secret: Callable[[str], bool] = lambda _key: False,
) -> dict[str, Setting]:
    """`ODRADEK_LOG_RETENTION_MS` is `log.retention.ms`. An underscore is two, a hyphen three.

    A secret may be in a file that the variable with `_FILE` behind its name names, as container
    images have it: its text without the line end. Raises ConfigurationError."""
    settings = {}
    faults = []
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = _key_of(name.removeprefix(ENVIRONMENT_PREFIX))
        own = name.removesuffix(_FILE_SUFFIX)
        of_secret = _key_of(own.removeprefix(ENVIRONMENT_PREFIX))
        if own == name or key == SECRET_FILE or not is_secret(of_secret):
            settings[key] = Setting(text, f"environment variable {name}")
            continue
        if own in environment:
            faults.append(f"environment variables {own} and {name} are both set. Remove one.")
        try:
            content = Path(text).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            faults.append(f"{name}: cannot read {text}: {reason}")
        else:
            settings[of_secret] = Setting(content, f"environment variable {name}")
    if faults:
        raise ConfigurationError(*faults)
    return settings


def _key_of(name: str) -> str:
    return re.sub("_{1,3}", lambda found: _UNDERSCORES[len(found[0]) - 1], name.lower())


def from_file(path: Path) -> dict[str, Setting]:
    """A TOML file (`.toml`), or `key=value` lines as in Kafka's server.properties (others)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the configuration file {path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the configuration file {path} is not UTF-8 text") from error
    if path.suffix == ".toml":
        return _from_toml(text, path)
    return from_properties(text, path)


def _from_toml(text: str, path: Path) -> dict[str, Setting]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    settings: dict[str, Setting] = {}
    lines = _toml_lines(text)

    def flatten(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else str(key), inner)
            return
        line = lines.get(prefix)
        origin = str(path) if line is None else f"{path} line {line}"
        written = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
        settings[prefix] = Setting(written, origin)

    flatten("", document)
    return settings


def _toml_lines(text: str) -> dict[str, int]:
    """The lines of the keys in a TOML file, as far as they begin one; tomllib does not say them."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        matched = _TOML_LINE.match(line)
        if matched is None:
            continue
        name = ".".join(part.strip(" \t\"'") for part in matched["name"].split("."))
        if matched["table"]:
            table = f"{name}."
        else:
            lines.setdefault(table + name, number)
    return lines


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_properties(text: str, path: Path) -> dict[str, Setting]:
    """`key=value` lines. ConfigurationError shows those that are none."""
    settings: dict[str, Setting] = {}
    faults = []
    continued = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = continued + raw.strip()
        if line.endswith("\\"):
            continued = line[:-1]
            continue
        continued = ""
        if not line or line[0] in "#!":
            continue
        matched = _PROPERTY.fullmatch(line)
        if matched is None:
            faults.append(f"{path} line {number}: {line!r} is not of the form key=value")
            continue
        settings[matched["key"]] = Setting(matched["value"], f"{path} line {number}")
    if faults:
        raise ConfigurationError(*faults)
    return settings

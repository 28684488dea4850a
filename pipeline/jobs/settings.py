"""The settings of a job, from YAML and from the command line, under the same names.

`kafka.sasl.mechanism: PLAIN` and `kafka: {sasl.mechanism: PLAIN}` are the same setting. What the
command line says comes before the file. Called by all commands of `odradek pipe`.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from odradek.pipeline.errors import PipelineError


def read_settings(file: Path | None, given: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of a file with those of the command line before them; None is not given.

    A list is joined by commas. PipelineError if the file is no YAML of names and values.
    """
    found = {} if file is None else _read_file(file)
    return found | {name: value for name, value in given.items() if value is not None}


def parse_properties(properties: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as settings; PipelineError for one without `=`."""
    found = {}
    for each in properties:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise PipelineError(f"{each} is no NAME=VALUE")
        found[name.strip()] = value
    return found


def with_prefix(settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The settings that begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }


def check_names(settings: Iterable[str], known: Iterable[str], prefixes: tuple[str, ...]) -> None:
    """PipelineError for a name that is neither known nor begins with one of `prefixes`."""
    names = set(known)
    for each in settings:
        if each in names or each.startswith(prefixes):
            continue
        near = get_close_matches(each, names, n=1)
        raise PipelineError(
            f"{each} is no setting of this job"
            + (
                f"; did you mean {near[0]}?"
                if near
                else f": take one of {', '.join(sorted(names))}"
            )
        )


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """The value; PipelineError if it is none of the choices."""
    listed = tuple(choices)
    if value not in listed:
        raise PipelineError(f"{name} is {value!r}: take one of {', '.join(listed)}")
    return value


def check_count(name: str, value: str) -> int:
    """A whole number from 1; `1_000` and `1k`, `1M`, `1G` (thousands) are read."""
    text = value.replace("_", "").strip()
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdecimal() or int(digits) == 0:
        raise PipelineError(f"{name} is {value!r}: write a whole number from 1, such as 500000")
    return int(digits) * scale


def _read_file(file: Path) -> dict[str, str]:
    # Not at the top: a job of flags alone needs no YAML.
    import yaml

    try:
        found = yaml.safe_load(file.read_text())
    except OSError as error:
        raise PipelineError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise PipelineError(f"{file} has no settings: write NAME: VALUE lines")
    return _flat(found, "", file)


def _flat(found: Mapping[object, object], prefix: str, file: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in found.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{prefix}{name}.", file)
        elif isinstance(value, list):
            settings[f"{prefix}{name}"] = ",".join(_text(each) for each in value)
        elif value is None:
            raise PipelineError(f"{file}: {prefix}{name} has no value")
        else:
            settings[f"{prefix}{name}"] = _text(value)
    return settings


def _text(value: object) -> str:
    """As Kafka and Spark write it: YAML reads `true` and dates into objects."""
    if isinstance(value, bool):
        return str(value).lower()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if callable(isoformat) else str(value)

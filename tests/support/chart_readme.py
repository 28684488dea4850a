"""Writes helm/odradek/README.md: `python -m tests.support.chart_readme helm/odradek/README.md`.

The table of values is read from values.yaml: a comment that begins with `# --` describes the key
below it, and the value there is its default. A map without described keys of its own is one row.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from tests.support.helm_chart import CHART

README: Final = CHART / "README.md"
HEAD: Final = CHART.parent / "readme_head.md"
_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):")


class DocumentedValue(NamedTuple):
    """A value: its path with dots, its default and what it is."""

    path: str
    default: object
    description: str


def documented_values(text: str) -> Iterator[DocumentedValue]:
    """The values of a values.yaml that have a description, in their order."""
    defaults = yaml.safe_load(text)
    path: list[str] = []
    description: list[str] = []
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# -- "):
            description = [comment.removeprefix("# -- ")]
        elif comment.startswith("#") and description:
            description.append(comment.removeprefix("#").strip())
        elif matched := _KEY.match(line):
            depth = len(matched["indent"]) // 2
            path = [*path[:depth], matched["key"]]
            if description:
                yield DocumentedValue(".".join(path), _at(defaults, path), " ".join(description))
            description = []


def undocumented_values(text: str) -> list[str]:
    """Paths of leaves that neither have a description nor are below one."""
    described = [each.path for each in documented_values(text)]
    return [
        path
        for path in _leaves(yaml.safe_load(text), "")
        if not any(path == known or path.startswith(f"{known}.") for known in described)
    ]


def _at(values: object, path: list[str]) -> object:
    for key in path:
        assert isinstance(values, dict), path
        values = values[key]
    return values


def _leaves(values: object, path: str) -> Iterator[str]:
    if isinstance(values, dict) and values:
        for key, inner in values.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def readme() -> str:
    """The text of the page."""
    rows = [
        "| " + " | ".join((f"`{each.path}`", _default(each.default), each.description)) + " |"
        for each in documented_values((CHART / "values.yaml").read_text())
    ]
    table = ["| Value | Default | What it is |", "| --- | --- | --- |", *rows]
    return HEAD.read_text() + "\n## Values\n\n" + "\n".join(table) + "\n"


def _default(value: object) -> str:
    return f"`{json.dumps(value)}`" if value not in ("", None, [], {}) else ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(readme())

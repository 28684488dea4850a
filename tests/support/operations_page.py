"""Reads docs/operations.md: its chapters, the commands in them, and what they are said to print.

A block of kind `console` is a terminal. Lines that begin with `$ ` are commands, the lines below
one are lines of what it prints, in that order; there may be others between them. `...` stands for
anything, a number for any number, a run of spaces for any other. `# exits with 1` behind a command
is part of what is promised.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
_HEADING: Final = re.compile(r"#{2,3} (.+)")
_EXIT: Final = re.compile(r"\s+# exits with (\d+)$")
_COMMENT: Final = re.compile(r"\s+# .*$")


class PageCommand(NamedTuple):
    """A command, lines of its output, and its exit code."""

    command: str
    lines: tuple[str, ...]
    exit_code: int

    def missing_line(self, output: str) -> str | None:
        """The first line that the output does not have, below those before."""
        printed = iter(output.splitlines())
        for line in self.lines:
            pattern = _pattern(line)
            if not any(pattern.fullmatch(each.strip()) for each in printed):
                return line
        return None


class Chapter(NamedTuple):
    """A heading of the second or third level, and the commands below it, up to the next one."""

    title: str
    steps: tuple[PageCommand, ...]
    text: str


def chapters(page: str) -> Iterator[Chapter]:
    """The chapters of a page, also those without a command."""
    title, kind = "", None
    text: list[str] = []
    blocks: list[list[str]] = []
    for line in page.splitlines():
        heading = _HEADING.fullmatch(line)
        if line.startswith("```"):
            kind = line[3:] or "text" if kind is None else None
            if kind == "console":
                blocks.append([])
        elif kind == "console":
            blocks[-1].append(line)
        elif heading and kind is None:
            yield Chapter(title, tuple(_steps(blocks)), "\n".join(text))
            title, text, blocks = heading[1], [], []
        text.append(line)
    yield Chapter(title, tuple(_steps(blocks)), "\n".join(text))


def _steps(blocks: list[list[str]]) -> Iterator[PageCommand]:
    for block in blocks:
        for part in re.split(r"^\$ ", "\n".join(block), flags=re.MULTILINE)[1:]:
            command, _, rest = part.replace("\\\n", " ").partition("\n")
            code = _EXIT.search(command)
            lines = tuple(line for line in rest.splitlines() if line.strip() not in ("", "..."))
            yield PageCommand(
                " ".join(_COMMENT.sub("", command).split()), lines, int(code[1]) if code else 0
            )


def _pattern(line: str) -> re.Pattern[str]:
    pattern = re.escape(" ".join(line.split()))
    pattern = pattern.replace(r"\.\.\.", ".*")
    pattern = re.sub(r"\d+", r"\\d+", pattern)
    return re.compile(pattern.replace(r"\ ", r"\s+"))

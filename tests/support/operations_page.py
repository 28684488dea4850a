"""Reads docs/operations.md and docs/pipeline.md: chapters, the steps in them, what these print.

A block of kind `console` is a terminal. Lines that begin with `$ ` are commands, the lines below
one are lines of what it prints, in that order; there may be others between them. `...` stands for
anything, a number for any number, a run of spaces for any other. `# exits with 1` behind a command
is part of what is promised.

Blocks of kind `python` are a program, those that follow each other one program, and a block of kind
`text` below is what it prints. A block of any other kind is a file if its first line is a comment
with the file's name.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "operations.md"
_HEADING: Final = re.compile(r"#{2,3} (.+)")
_EXIT: Final = re.compile(r"\s+# exits with (\d+)$")
_COMMENT: Final = re.compile(r"\s+# .*$")
_FILE: Final = re.compile(r"(?:#|//) ([\w./-]+)")


class PageCommand(NamedTuple):
    """A command, lines of its output, and its exit code."""

    command: str
    """Or a program in Python, or the name of a file."""
    lines: tuple[str, ...]
    """Or those of the file."""
    exit_code: int
    kind: Literal["console", "python", "file"] = "console"

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
    blocks: list[tuple[str, list[str]]] = []
    for line in page.splitlines():
        heading = _HEADING.fullmatch(line)
        if line.startswith("```"):
            kind = line[3:] or "text" if kind is None else None
            if kind is not None:
                blocks.append((kind, []))
        elif kind is not None:
            blocks[-1][1].append(line)
        elif heading and kind is None:
            yield Chapter(title, tuple(_steps(blocks)), "\n".join(text))
            title, text, blocks = heading[1], [], []
        text.append(line)
    yield Chapter(title, tuple(_steps(blocks)), "\n".join(text))


def _steps(blocks: list[tuple[str, list[str]]]) -> Iterator[PageCommand]:
    program: list[str] = []
    printed: list[str] = []
    for kind, lines in [*blocks, ("", [])]:
        if kind == "python":
            program += lines
        elif kind == "text" and program:
            printed += lines
        else:
            if program:
                yield PageCommand("\n".join(program), _promised(printed), 0, "python")
                program, printed = [], []
            if kind == "console":
                yield from _commands("\n".join(lines))
            elif lines and (name := _FILE.fullmatch(lines[0])):
                yield PageCommand(name[1], tuple(lines), 0, "file")


def _commands(block: str) -> Iterator[PageCommand]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, rest = part.replace("\\\n", " ").partition("\n")
        code = _EXIT.search(command)
        yield PageCommand(
            " ".join(_COMMENT.sub("", command).split()),
            _promised(rest.splitlines()),
            int(code[1]) if code else 0,
        )


def _promised(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line.strip() not in ("", "..."))


def _pattern(line: str) -> re.Pattern[str]:
    pattern = re.escape(" ".join(line.split()))
    pattern = pattern.replace(r"\.\.\.", ".*")
    pattern = re.sub(r"\d+", r"\\d+", pattern)
    return re.compile(pattern.replace(r"\ ", r"\s+"))

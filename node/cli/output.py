"""Where a command's data goes: tables on a terminal, plain columns in a pipe, JSON when asked.

Data goes to stdout and nothing else does: progress, hints and errors go to stderr. JSON output is
complete (no truncation, no rounding) and its keys are the column names of the text output, so
that a script can be written by looking at a table.
"""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

# How often progress is printed as a line, where it cannot be shown as a bar.
PROGRESS_LINE_INTERVAL_S = 2.0

P = ParamSpec("P")
R = TypeVar("R")

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Row: TypeAlias = Mapping[str, Json]

# The colour of a value on a terminal, in any column.
STYLES: Mapping[str, str] = {
    "Stable": "green",
    "Empty": "yellow",
    "Dead": "red",
    "PreparingRebalance": "yellow",
    "CompletingRebalance": "yellow",
}


class Output:
    """Prints what a command shows. With `is_json` a command may print a nested document in place of
    tables."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty() and not is_json

    def document(self, value: Json) -> None:
        """Print one indented JSON document."""
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))

    def json_line(self, value: Json) -> None:
        """Print one JSON document on one line: a stream of records (JSON Lines)."""
        click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def rows(self, rows: Sequence[Row], columns: Sequence[str] = (), *, empty: str = "") -> None:
        """Print rows as a table of `columns`, by default of all keys of the first row. JSON has
        every key of a row.

        `empty` goes to stderr if there are no rows and the output is not JSON.
        """
        if self.is_json:
            self.document(rows)
        elif not rows:
            if empty:
                self.hint(empty)
        elif self.is_terminal:
            self._rich_table(rows, columns or list(rows[0]))
        else:
            self._plain_table(rows, columns or list(rows[0]))

    def facts(self, facts: Row) -> None:
        """Print one thing as name and value lines (or one JSON object)."""
        if self.is_json:
            self.document(facts)
            return
        width = max(len(name) for name in facts)
        for name, value in facts.items():
            label = click.style(f"{_title(name):<{width}}", bold=True)
            click.echo(f"{label}  {_text(value, is_plain=not self.is_terminal)}")

    def hint(self, text: str) -> None:
        """Print a remark on stderr; it is never part of the data."""
        if not self.is_json:
            click.echo(text, err=True)

    def done(self, text: str, result: Json) -> None:
        """Report a change: `text`, or `result` as JSON."""
        if self.is_json:
            self.document(result)
        else:
            click.echo(text)

    def _rich_table(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                _title(column),
                justify="right" if _is_numeric(rows, column) else "left",
                overflow="fold",
            )
        for row in rows:
            cells = ((_text(row.get(c), is_plain=False), _style(c, row.get(c))) for c in columns)
            table.add_row(*(Text(text, style=style) for text, style in cells))
        Console().print(table)

    def _plain_table(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        numeric = {column for column in columns if _is_numeric(rows, column)}
        grid = [[_title(column) for column in columns]]
        grid.extend([_text(row.get(column)) for column in columns] for row in rows)
        widths = [max(len(line[at]) for line in grid) for at in range(len(columns))]
        for line in grid:
            cells = (
                cell.rjust(width) if column in numeric else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            )
            click.echo("  ".join(cells).rstrip())

    @contextmanager
    def progress(
        self, description: str, total: int | None, *, is_bytes: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the count done since the last call.

        A bar on stderr when that is a terminal, nothing otherwise. `total` None: the end is not
        known. `is_bytes`: counts are bytes, and are shown with units.
        """
        if self.is_json or not sys.stderr.isatty():
            yield _ignore
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn() if is_bytes else MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(description, total=total)

            def advance(count: int) -> None:
                bar.advance(task, count)

            yield advance

    @contextmanager
    def labelled_progress(
        self, description: str, total_bytes: int
    ) -> Iterator[Callable[[int, int, str], None]]:
        """Yield a function to call with the bytes done, their total, and a text of both.

        A bar on stderr when that is a terminal; else the text every PROGRESS_LINE_INTERVAL_S and at
        the end.
        """
        if self.is_json or not sys.stderr.isatty():
            with self._periodic_lines() as print_line:
                yield print_line
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(description, total=total_bytes, text="")

            def show(done: int, total: int, text: str) -> None:
                bar.update(task, completed=done, total=max(total, 1), text=text)

            yield show

    @contextmanager
    def _periodic_lines(self) -> Iterator[Callable[[int, int, str], None]]:
        due = 0.0
        unprinted = ""

        def print_line(_done: int, _total: int, text: str) -> None:
            nonlocal due, unprinted
            unprinted = text
            if time.monotonic() >= due:
                self.hint(text)
                unprinted = ""
                due = time.monotonic() + PROGRESS_LINE_INTERVAL_S

        yield print_line
        if unprinted:
            self.hint(unprinted)


def size_text(byte_count: int) -> str:
    """`512 B`, `1.5 kB`, `2.0 GB`: in powers of a thousand, as `--throttle` takes them."""
    if byte_count < 1000:
        return f"{byte_count} B"
    size, unit = byte_count / 1000, "kB"
    for larger in ("MB", "GB", "TB", "PB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"


def known(number: int) -> int | None:
    """The number, or None for -1, with which the protocol says that it is not known."""
    return None if number < 0 else number


def first_names(names: Iterable[str], count_max: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    shown = ", ".join(names[:count_max])
    rest = len(names) - count_max
    return f"{shown} and {rest} more" if rest > 0 else shown


def with_output(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command `--output text|json` and pass it an `output`."""

    @click.option(
        "--output",
        "-o",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text is a table on a terminal and plain columns in a pipe.",
    )
    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        root = click.get_current_context().find_root()
        cluster = ("bootstrap", "properties", "client_config")
        is_named = any(root.params.get(name) for name in cluster)
        # A profile of the environment is for all commands.
        is_named |= root.get_parameter_source("cluster_profile") is ParameterSource.COMMANDLINE
        if "connection" not in kwargs and is_named:
            raise click.UsageError(
                "This command connects to no cluster: -b, -X, -p and --client-config are not for"
                " it."
            )
        kwargs["output"] = Output(is_json=kwargs.pop("output_format") == "json")
        return command(*args, **kwargs)

    return wrapper


def _ignore(_count: int) -> None:
    return None


def _title(name: str) -> str:
    return name.replace("_", " ").upper()


def _text(value: Json, *, is_plain: bool = True) -> str:
    """A cell. `is_plain`: numbers as programs read them; otherwise with thousands separators."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if is_plain:
            return repr(round(value, 3))
        return f"{value:,.3f}" if value < 100 else f"{value:,.0f}"
    if isinstance(value, str | int):
        return str(value)
    if not value:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items())
    return ",".join(_text(item) for item in value)


def _is_numeric(rows: Sequence[Row], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return any(isinstance(value, int | float) for value in values) and all(
        value is None or isinstance(value, int | float) for value in values
    )


def _style(column: str, value: Json) -> str:
    if column == "lag" and isinstance(value, int) and value > 0:
        return "yellow"
    if column == "error" and value is not None:
        return "red"
    return STYLES.get(value, "") if isinstance(value, str) else ""

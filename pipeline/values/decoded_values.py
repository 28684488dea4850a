"""What a value format gives for a column of bytes: rows of the good, a reason for each of the bad.

Also the loop that all formats of rows share. Its invariant: every value ends as exactly one row or
exactly one problem, and only an outage (PipelineError) ends the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError

PROBLEM_LENGTH_MAX = 300
"""Characters of a problem: it travels as a header of the dead-letter topic."""

RowDecoder = Callable[[bytes], Sequence[object]]
"""One value to what `pa.array` takes for each column; raises whatever it likes for a bad value."""

_REFUSED: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""What `pa.array` raises for a value that its type cannot hold."""


class BadValue(ValueError):
    """A value that its format cannot read: what is wrong, and where in the value."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.text = text
        self.path = path

    def below(self, step: str) -> "BadValue":
        """The same one level up: `step` is the name of a field, or an index in brackets."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return BadValue(self.text, f"{step}{separator}{self.path}")


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """The rows of the good values in their order; `good` has one entry per value."""

    table: pa.Table
    good: pa.BooleanArray
    problems: dict[int, str] = field(default_factory=dict)
    """Index of the value to one line that says what is wrong with it."""


def decode_rows(
    values: pa.BinaryArray, columns: pa.Schema, decode_row: RowDecoder
) -> DecodedValues:
    """All values through `decode_row`. A null (tombstone) is a good row of nulls."""
    nulls: Sequence[object] = (None,) * len(columns)
    rows: dict[int, Sequence[object]] = {}
    problems: dict[int, str] = {}
    for index, value in enumerate(values.to_pylist()):
        try:
            rows[index] = nulls if value is None else decode_row(value)
        except PipelineError:
            raise
        except Exception as error:  # the bytes of strangers, read by the code of strangers
            problems[index] = problem_text(error)
    table = _table(rows, columns, problems)
    good = pa.array([index not in problems for index in range(len(values))], pa.bool_())
    return DecodedValues(table, good, problems)


def problem_text(error: Exception) -> str:
    """One line of bounded length."""
    text = str(error) or "cannot be read"
    if not isinstance(error, BadValue):
        text = f"{type(error).__name__}: {text}"
    text = " ".join(text.split())
    return text if len(text) <= PROBLEM_LENGTH_MAX else text[: PROBLEM_LENGTH_MAX - 3] + "..."


def _table(
    rows: dict[int, Sequence[object]], columns: pa.Schema, problems: dict[int, str]
) -> pa.Table:
    """The rows as columns. What Arrow refuses (a decimal of too many digits) becomes a problem."""
    try:
        return _columns_of(list(rows.values()), columns)
    except _REFUSED:
        for index, row in list(rows.items()):
            try:
                _check(row, columns)
            except BadValue as error:
                problems[index] = problem_text(error)
                del rows[index]
    return _columns_of(list(rows.values()), columns)


def _check(row: Sequence[object], columns: pa.Schema) -> None:
    for value, column in zip(row, columns, strict=True):
        try:
            pa.array([value], column.type)
        except _REFUSED as error:
            raise BadValue(str(error), column.name) from None


def _columns_of(rows: list[Sequence[object]], columns: pa.Schema) -> pa.Table:
    transposed = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = [
        pa.array(column, kind) for column, kind in zip(transposed, columns.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=columns)

"""Which rows of two tables differ, and in which columns: exactly, without hashes.

Whole columns are compared first, and halves of what differs until single rows are left. So equal
tables cost one pass of Arrow over the bytes, whatever the types are.
"""

import pyarrow as pa
import pyarrow.types as types

from odradek.pipeline.errors import PipelineError

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def differing_rows(expected: pa.Table, found: pa.Table) -> dict[int, list[str]]:
    """Index of each row that differs to the names of its columns that do.

    Both have equally many rows, and `found` has all columns of `expected`, as types that can be
    cast to its types; its other columns are not looked at. Floats are equal if their bits are.
    """
    differences: dict[int, list[str]] = {}
    for column in expected.schema:
        is_found = _cast(found.column(column.name), column)
        for row in _differing(expected.column(column.name), is_found):
            differences.setdefault(row, []).append(column.name)
    return differences


def _cast(array: pa.ChunkedArray, column: pa.Field) -> pa.ChunkedArray:
    if array.type == column.type:
        return array
    try:
        return array.cast(column.type)
    except pa.ArrowException as error:
        raise PipelineError(
            f"column {column.name} of the table is {array.type}, and by the schema {column.type}:"
            " verify with the schema that the job has"
        ) from error


def _differing(expected: pa.ChunkedArray, found: pa.ChunkedArray) -> list[int]:
    if expected.equals(found):
        return []
    if _has_floats(expected.type):
        # Arrow calls a NaN different from itself, and 0.0 equal to -0.0.
        expected, found = _without_floats(expected), _without_floats(found)
    rows = []
    pending = [(0, len(expected))]
    while pending:
        start, length = pending.pop()
        if expected.slice(start, length).equals(found.slice(start, length)):
            continue
        if length == 1:
            rows.append(start)
            continue
        half = length // 2
        pending += [(start + half, length - half), (start, half)]
    return rows


def _has_floats(kind: pa.DataType) -> bool:
    if types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(index).type) for index in range(kind.num_fields))


def _without_floats(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as integers of the same bits, nested ones as the text of the whole value."""
    bits = _BITS.get(array.type)
    if bits is not None:
        return pa.chunked_array([chunk.view(bits) for chunk in array.chunks], bits)
    texts = [None if value is None else repr(value) for value in array.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])

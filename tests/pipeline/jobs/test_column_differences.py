"""Every difference is found, exactly and in its column, whatever the types are."""

import random

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.column_differences import differing_rows
from odradek.pipeline.kafka_types import HEADER_TYPE

HEADERS = pa.list_(HEADER_TYPE)


def _table(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


def test_equal_tables_of_other_chunks_do_not_differ() -> None:
    values = pa.array([b"a", None, b"", b"b"])
    chunked = pa.chunked_array([values.slice(0, 1), values.slice(1)])

    assert differing_rows(pa.table({"v": values}), pa.table({"v": chunked})) == {}


def test_null_and_empty_bytes_differ() -> None:
    assert differing_rows(
        _table(v=pa.array([None, b"", b"x"])), _table(v=pa.array([b"", b"", None], pa.binary()))
    ) == {0: ["v"], 2: ["v"]}


def test_headers_differ_by_key_value_order_and_number() -> None:
    first, second = {"key": "a", "value": b"1"}, {"key": "b", "value": None}
    expected: list[object] = [[first], [first], [first, second], [first], [], None, [second]]
    found: list[object] = [
        [{**first, "key": "A"}],
        [{**first, "value": b"2"}],
        [second, first],
        [first, first],
        None,
        None,
        [second],
    ]

    assert differing_rows(
        _table(h=pa.array(expected, HEADERS)), _table(h=pa.array(found, HEADERS))
    ) == {0: ["h"], 1: ["h"], 2: ["h"], 3: ["h"], 4: ["h"]}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_are_equal_by_their_bits(kind: pa.DataType) -> None:
    expected = pa.array([float("nan"), 0.0, 1.5, None], kind)
    found = pa.array([float("nan"), -0.0, 1.5, float("nan")], kind)

    assert differing_rows(_table(v=expected), _table(v=found)) == {1: ["v"], 3: ["v"]}


def test_floats_within_other_values_are_equal_by_their_bits() -> None:
    kind = pa.list_(pa.struct([pa.field("x", pa.float64())]))
    expected = pa.array([[{"x": float("nan")}], [{"x": 0.0}], None], kind)
    found = pa.array([[{"x": float("nan")}], [{"x": -0.0}], None], kind)

    assert differing_rows(_table(v=expected), _table(v=found)) == {1: ["v"]}


def test_types_of_another_width_are_cast() -> None:
    expected = _table(v=pa.array(["a", "b"]), h=pa.array([[], None], HEADERS))
    large = pa.large_list(
        pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
    )
    found = _table(v=pa.array(["a", "c"], pa.large_string()), h=pa.array([[], None], large))

    assert differing_rows(expected, found) == {1: ["v"]}


def test_types_that_cannot_be_cast_are_told() -> None:
    with pytest.raises(PipelineError, match="column v of the table is string, and by the schema"):
        differing_rows(_table(v=pa.array([1])), _table(v=pa.array(["x"])))


@pytest.mark.parametrize("seed", range(20))
def test_same_differences_as_row_by_row(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randrange(1, 300)
    expected = [
        {"a": chance.choice([None, b"", b"x"]), "b": chance.randrange(3)} for _ in range(rows)
    ]
    found = [dict(row) for row in expected]
    for index in range(rows):
        if chance.random() < chance.choice([0.01, 0.9]):
            found[index][chance.choice("ab")] = None
    schema = pa.schema([pa.field("a", pa.binary()), pa.field("b", pa.int64())])

    by_row = {
        index: [name for name in "ab" if one[name] != other[name]]
        for index, (one, other) in enumerate(zip(expected, found, strict=True))
        if one != other
    }
    assert (
        differing_rows(pa.Table.from_pylist(expected, schema), pa.Table.from_pylist(found, schema))
        == by_row
    )

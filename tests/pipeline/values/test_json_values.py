"""JSON values as a table."""

from decimal import Decimal
from multiprocessing.reduction import ForkingPickler

import pyarrow as pa
import pytest

from odradek.pipeline.values.json_values import JsonValues

DDL = "id BIGINT NOT NULL, name STRING, price DECIMAL(10, 2)"


def decode(values: list[bytes | None], schema: str = DDL, *, has_wire_format: bool = False):  # type: ignore[no-untyped-def]  # noqa: ANN201
    travelled = ForkingPickler.loads(
        ForkingPickler.dumps(JsonValues(schema, has_wire_format=has_wire_format))
    )
    return travelled.decode(pa.array(values, pa.binary()))


def test_good_bad_and_tombstones() -> None:
    decoded = decode(
        [
            b'{"id": 1, "name": "a", "price": 1.10, "more": []}',
            None,
            b'{"id": 2}',
            b'{"name": "without id"}',
            b"{",
            b"\xff",
            b'{"id": NaN}',
            b'{"id": 3, "price": 1.234}',
            b"[" * 100_000,
            b"",
        ]
    )
    assert decoded.table.to_pylist() == [
        {"id": 1, "name": "a", "price": Decimal("1.10")},
        {"id": None, "name": None, "price": None},
        {"id": 2, "name": None, "price": None},
    ]
    assert decoded.good.to_pylist() == [True, True, True] + [False] * 7
    problems = [decoded.problems[index] for index in range(3, 10)]
    expected = ["id: it is missing", "not JSON: ", "not JSON: ", "not JSON: NaN", "price: "]
    for problem, start in zip(problems, [*expected, "not JSON: ", "not JSON: "], strict=True):
        assert problem.startswith(start)


def test_columns_are_nullable_also_where_a_value_must_not_be_null() -> None:
    assert JsonValues(DDL).columns() == pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2))]
    )


def test_a_json_schema_gives_columns_too() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}'
    decoded = decode([b'{"a": 1}', b"{}"], schema)
    assert decoded.table.to_pydict() == {"a": [1.0]}
    assert decoded.problems == {1: "a: it is missing"}


def test_the_wire_format_is_skipped_and_demanded() -> None:
    decoded = decode([b'\0\0\0\0\7{"id": 1}', b'{"id": 1}'], has_wire_format=True)
    assert decoded.table["id"].to_pylist() == [1]
    assert "wire format" in decoded.problems[1]


@pytest.mark.parametrize("values", [[], [None]])
def test_nothing_is_a_table_with_the_columns(values: list[bytes | None]) -> None:
    assert decode(values).table.num_rows == len(values)


def test_the_fingerprint_is_that_of_the_columns() -> None:
    assert JsonValues("a INT").fingerprint() == JsonValues("`a`  INTEGER").fingerprint()
    others = {JsonValues(text).fingerprint() for text in ("a INT", "b INT", "a INT NOT NULL")}
    assert len(others) == 3
    assert JsonValues("a INT", has_wire_format=True).fingerprint() not in others

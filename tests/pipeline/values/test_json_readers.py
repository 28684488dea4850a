"""Parsed JSON to Arrow's values: strict, with the place of what is wrong."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue
from odradek.pipeline.values.json_readers import json_reader, row_reader
from odradek.pipeline.values.spark_ddl import spark_ddl_schema


def read(kind: str, value: object) -> object:
    return json_reader(spark_ddl_schema(f"a {kind}").field(0).type)(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("BIGINT", 2**63 - 1, 2**63 - 1),
        ("INT", 5.0, 5),
        ("TINYINT", -128, -128),
        ("DOUBLE", 3, 3.0),
        ("FLOAT", 0.5, 0.5),
        ("BOOLEAN", False, False),
        ("STRING", "ä", "ä"),
        ("STRING", {"a": [1, "ä", None]}, '{"a":[1,"ä",null]}'),
        ("STRING", 1.5, "1.5"),
        ("STRING", True, "true"),
        ("BINARY", "AAE=", b"\0\1"),
        ("DECIMAL(5,2)", Decimal("1.50"), Decimal("1.50")),
        ("DECIMAL(5,2)", "1.50", Decimal("1.50")),
        ("DECIMAL(5,2)", 7, Decimal(7)),
        ("DATE", "2026-01-31", date(2026, 1, 31)),
        ("TIMESTAMP", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("TIMESTAMP", "2026-01-31 12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("TIMESTAMP", "2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500000, UTC)),
        ("TIMESTAMP_NTZ", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        ("ARRAY<INT>", [1, None], [1, None]),
        ("MAP<STRING, INT>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        ("STRUCT<a: INT, b: INT>", {"b": 1, "unknown": 2}, (None, 1)),
    ],
)
def test_values(kind: str, value: object, expected: object) -> None:
    assert read(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("BIGINT", "1", '"1" where an integer'),
        ("BIGINT", True, "true where an integer"),
        ("BIGINT", 1.5, r"1\.5 where an integer"),
        ("BIGINT", 1e300, "where an integer"),
        ("BIGINT", Decimal("1e999999"), "where an integer"),
        ("INT", 2**31, "too large for 32 bits"),
        ("DOUBLE", "1", "where a number"),
        ("DOUBLE", 10**400, "too large"),
        ("DOUBLE", float("inf"), "too large for a double"),
        ("FLOAT", 1e39, "too large for a float"),
        ("BOOLEAN", 0, "0 where true or false"),
        ("STRING", "\ud800", "half of a surrogate pair"),
        ("BINARY", "AAE", "base64"),
        ("BINARY", 1, "base64"),
        ("DECIMAL(5,2)", "NaN", "where a decimal number"),
        ("DECIMAL(5,2)", "x", "where a decimal number"),
        ("DATE", "31.01.2026", "where a date"),
        ("TIMESTAMP", 1700000000, "1700000000 where a time as text"),
        ("TIMESTAMP", "yesterday", "where a time"),
        ("TIMESTAMP", "0001-01-01T00:00:00+02:00", "outside of the years"),
        ("TIMESTAMP_NTZ", "2026-01-31T12:00:00Z", "without an offset"),
        ("ARRAY<INT>", {}, "where an array"),
        ("ARRAY<INT>", [1, "x"], r"^\[1\]: "),
        ("MAP<STRING, INT>", [], "where an object"),
        ("MAP<STRING, INT>", {"k": "x"}, r"^\['k'\]: "),
        ("STRUCT<a: ARRAY<STRUCT<b: INT>>>", {"a": [{"b": "x"}]}, r"^a\[0\]\.b: "),
        ("STRUCT<a: INT NOT NULL>", {}, "^a: it is missing"),
        ("STRUCT<a: INT NOT NULL>", {"a": None}, "^a: it is null"),
        ("STRING", "x" * 5000 + "\ud800", "surrogate"),
    ],
)
def test_what_does_not_fit_is_told(kind: str, value: object, problem: str) -> None:
    with pytest.raises((BadValue, OverflowError), match=problem):
        read(kind, value)


def test_a_map_has_texts_for_keys() -> None:
    with pytest.raises(PipelineError, match="keys of a MAP"):
        read("MAP<INT, INT>", {})


@pytest.mark.parametrize("value", [None, [], 1, "text"])
def test_a_row_is_an_object(value: object) -> None:
    read_row = row_reader(spark_ddl_schema("a INT"))
    row: Sequence[object] = read_row({"a": 1})
    assert row == (1,)
    with pytest.raises(BadValue, match="where an object is expected"):
        read_row(value)

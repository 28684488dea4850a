"""The loop that all formats share: every value is one row or one problem."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import (
    PROBLEM_LENGTH_MAX,
    BadValue,
    decode_rows,
    problem_text,
)

COLUMNS = pa.schema([pa.field("number", pa.int8()), pa.field("text", pa.string())])


def read(value: bytes) -> Sequence[object]:
    if value == b"outage":
        raise PipelineError("the registry does not answer")
    return int(value), value.decode()


def test_rows_keep_their_order_and_bad_ones_are_left_out() -> None:
    decoded = decode_rows(pa.array([b"1", b"x", None, b"2"], pa.binary()), COLUMNS, read)
    assert decoded.table.to_pydict() == {"number": [1, None, 2], "text": ["1", None, "2"]}
    assert decoded.good.to_pylist() == [True, False, True, True]
    assert decoded.problems == {1: "ValueError: invalid literal for int() with base 10: b'x'"}


def test_what_arrow_refuses_is_a_problem_of_its_row_alone() -> None:
    decoded = decode_rows(pa.array([b"1", b"300", b"2"], pa.binary()), COLUMNS, read)
    assert decoded.table.to_pydict() == {"number": [1, 2], "text": ["1", "2"]}
    assert decoded.good.to_pylist() == [True, False, True]
    assert decoded.problems[1].startswith("number: ")


def test_an_outage_ends_the_work() -> None:
    with pytest.raises(PipelineError, match="does not answer"):
        decode_rows(pa.array([b"1", b"outage"], pa.binary()), COLUMNS, read)


def test_nothing_but_bad_values_is_an_empty_table_with_the_columns() -> None:
    decoded = decode_rows(pa.array([b"x"], pa.binary()), COLUMNS, read)
    assert decoded.table.num_rows == 0
    assert decoded.table.schema == COLUMNS


def test_a_problem_is_one_line_of_bounded_length() -> None:
    text = problem_text(BadValue("a\nb " * 1000))
    assert "\n" not in text
    assert len(text) == PROBLEM_LENGTH_MAX


def test_a_problem_tells_where() -> None:
    error = BadValue("a text", "price").below("[2]").below("items")
    assert str(error) == "items[2].price: a text"
    assert problem_text(KeyError()) == "KeyError: cannot be read"

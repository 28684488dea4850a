"""Spark's DDL as Arrow."""

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.spark_ddl import spark_ddl_schema

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a BIGINT", pa.int64()),
        ("a long", pa.int64()),
        ("a: int", pa.int32()),
        ("a SMALLINT", pa.int16()),
        ("a BYTE", pa.int8()),
        ("a FLOAT", pa.float32()),
        ("a DOUBLE COMMENT 'it\\'s'", pa.float64()),
        ("a BOOLEAN", pa.bool_()),
        ("a VARCHAR(20)", pa.string()),
        ("a BINARY", pa.binary()),
        ("a DATE", pa.date32()),
        ("a TIMESTAMP", UTC),
        ("a TIMESTAMP_NTZ", pa.timestamp("us")),
        ("a DECIMAL", pa.decimal128(10, 0)),
        ("a DECIMAL(20, 3)", pa.decimal128(20, 3)),
        ("a ARRAY<STRING>", pa.list_(pa.string())),
        ("a MAP<STRING, ARRAY<INT>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
        (
            "a STRUCT<x: INT NOT NULL, `y z`: STRUCT<w: DATE>>",
            pa.struct(
                [
                    pa.field("x", pa.int32(), nullable=False),
                    pa.field("y z", pa.struct([pa.field("w", pa.date32())])),
                ]
            ),
        ),
    ],
)
def test_types(text: str, kind: pa.DataType) -> None:
    assert spark_ddl_schema(text) == pa.schema([pa.field("a", kind)])


def test_several_columns_in_their_order() -> None:
    schema = spark_ddl_schema("id BIGINT NOT NULL COMMENT 'key',\n `a``b` STRING , at TIMESTAMP\n")
    assert schema.names == ["id", "a`b", "at"]
    assert [field.nullable for field in schema] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("id", "the end at character 3, where a type"),
        ("id BIGNUM", "`BIGNUM` at character 4"),
        ("id BIGINT name STRING", "`name` at character 11, where `,`"),
        ("id BIGINT,", "the end at character 11, where the name of a column"),
        ("a ARRAY<INT", "the end at character 12, where `>`"),
        ("a DECIMAL(40, 2)", "1 to 38 digits"),
        ("a DECIMAL(x)", "`x` at character 11, where a number"),
        ("a INT ? b INT", "`\\? b INT` at character 6"),
        ("a INT NOT b", "where NULL"),
        ("a INTERVAL", "`INTERVAL`"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        spark_ddl_schema(text)

"""JSON Schema as Arrow."""

import json

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.json_schema import json_schema_columns


def columns(properties: object, **more: object) -> pa.Schema:
    return json_schema_columns(json.dumps({"type": "object", "properties": properties, **more}))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string"}, pa.string()),
        ({"type": ["null", "string"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", tz="UTC")),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            pa.map_(pa.string(), pa.float64()),
        ),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64()),
        ({"properties": {"b": {"type": "integer"}}}, pa.struct([pa.field("b", pa.int64())])),
        ({"$ref": "#/$defs/money"}, pa.float64()),
    ],
)
def test_types(schema: object, kind: pa.DataType) -> None:
    found = columns({"a": schema}, **{"$defs": {"money": {"type": "number"}}})
    assert found == pa.schema([pa.field("a", kind)])


def test_required_is_not_nullable_unless_null_is_allowed() -> None:
    found = columns(
        {
            "a": {"type": "integer"},
            "b": {"type": ["integer", "null"]},
            "c": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        },
        required=["a", "b", "c"],
    )
    assert [field.nullable for field in found] == [False, True, True]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": ["string", "integer"]}, "#/properties/a cannot be a column, .*DDL"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "union of several types"),
        ({"type": "array"}, "needs `items`"),
        ({"type": "object"}, "needs `properties`"),
        ({}, "of no type"),
        ({"$ref": "#/$defs/lost"}, "'#/\\$defs/lost' is not in the schema"),
        ({"$ref": "other.json"}, "only references inside it"),
        ({"$ref": "#"}, "refers to itself"),
        ({"type": "null"}, "its type is 'null'"),
    ],
)
def test_what_no_column_can_be_is_told_with_its_place(schema: object, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        columns({"a": schema})


@pytest.mark.parametrize("text", ["{", '{"type": "string"}', '{"type": "object"}'])
def test_only_an_object_is_a_table(text: str) -> None:
    with pytest.raises(PipelineError, match=r"value\.schema"):
        json_schema_columns(text)

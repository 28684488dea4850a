"""The part of JSON Schema that says what the columns of a table are, as Arrow.

Objects with `properties` are structs, those with only `additionalProperties` are maps; a union is
understood when it is one type and null. Where a schema leaves more open, the error names the place
and people write the columns as DDL instead. Keywords that only narrow values (`minimum`, `pattern`)
are not checked.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError

Schema = Mapping[str, Any]

_SIMPLE: Final = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_FORMATS: Final = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_REFERENCES_MAX: Final = 50
"""Deeper than any schema of people; a schema that refers to itself is no table."""


def json_schema_columns(text: str) -> pa.Schema:
    """The columns of an object's schema; a required one that may not be null is not nullable."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"value.schema is not JSON: {error}") from None
    kind = _Reader(root).kind(root, "#", 0) if isinstance(root, dict) else None
    if kind is None or not pa.types.is_struct(kind):
        raise PipelineError("value.schema: the JSON Schema must describe an object with properties")
    return pa.schema(list(kind))


class _Reader:
    """Holds the root, to which `$ref` refers."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def kind(self, schema: Schema, place: str, depth: int) -> pa.DataType:
        schema = self._resolve(schema, place)
        if depth > _REFERENCES_MAX:
            raise PipelineError(f"value.schema: {place[:80]} refers to itself, which no table can")
        name = self._type_name(schema, place)
        match name:
            case "object":
                return self._object(schema, place, depth)
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict):
                    raise _unclear(place, "an array needs `items` with the schema of its elements")
                return pa.list_(self.kind(items, f"{place}/items", depth + 1))
            case "string":
                if schema.get("contentEncoding") == "base64":
                    return pa.binary()
                return _FORMATS.get(str(schema.get("format")), pa.string())
            case _ if name in _SIMPLE:
                return _SIMPLE[name]
        raise _unclear(place, f"its type is {name!r}")

    def _object(self, schema: Schema, place: str, depth: int) -> pa.DataType:
        properties = schema.get("properties")
        if not properties:
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                raise _unclear(place, "an object needs `properties`")
            return pa.map_(
                pa.string(), self.kind(values, f"{place}/additionalProperties", depth + 1)
            )
        required = schema.get("required", ())
        return pa.struct(
            [
                pa.field(
                    name,
                    self.kind(inner, f"{place}/properties/{name}", depth + 1),
                    nullable=name not in required or self._may_be_null(inner, place),
                )
                for name, inner in properties.items()
            ]
        )

    def _type_name(self, schema: Schema, place: str) -> str:
        named = schema.get("type")
        if named is None and "properties" in schema:
            return "object"
        if named is None and "enum" in schema:
            members = [member for member in schema["enum"] if member is not None]
            if members and all(isinstance(member, str) for member in members):
                return "string"
        if isinstance(named, list):
            named = [name for name in named if name != "null"]
            named = named[0] if len(named) == 1 else named
        if not isinstance(named, str):
            raise _unclear(place, "it is of no type or of several")
        return named

    def _resolve(self, schema: Schema, place: str) -> Schema:
        """Through references and unions with null to what has a type."""
        for _ in range(_REFERENCES_MAX):
            if not isinstance(schema, dict):
                raise _unclear(place, "it is no schema object")
            if "$ref" in schema:
                schema = self._referred(str(schema["$ref"]))
                continue
            branches = schema.get("oneOf") or schema.get("anyOf")
            if not branches:
                return schema
            others = [branch for branch in branches if branch.get("type") != "null"]
            if len(others) != 1:
                raise _unclear(place, "it is a union of several types")
            schema = others[0]
        raise PipelineError(f"value.schema: {place[:80]} refers to itself, which no table can")

    def _may_be_null(self, schema: Schema, place: str) -> bool:
        while "$ref" in schema:
            schema = self._referred(str(schema["$ref"]))
        branches = schema.get("oneOf") or schema.get("anyOf") or ()
        named = schema.get("type")
        return (
            (isinstance(named, list) and "null" in named)
            or None in schema.get("enum", ())
            or any(self._may_be_null(branch, place) for branch in branches)
            or named == "null"
        )

    def _referred(self, reference: str) -> Schema:
        found: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if not reference.startswith("#") or not isinstance(found, dict):
            raise PipelineError(
                f"value.schema: {reference!r} is not in the schema; only references inside it,"
                " as #/$defs/name, are followed"
            )
        return found


def _unclear(place: str, why: str) -> PipelineError:
    return PipelineError(
        f"value.schema: {place} cannot be a column, {why};"
        " write the columns as DDL, with STRING for what is to stay JSON"
    )

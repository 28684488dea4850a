"""Avro types as columns, and fastavro's values as what Arrow takes for them.

Spark's mapping (`from_avro`): a union of several types is a struct `member0`, `member1`, ... of
which one is set; int with long is a long, float with double a double. Times of the day are numbers,
as no table format shares them. Pure: knows fastavro's values, not its functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue

AvroSchema = Any
"""JSON: a text, an object or an array."""
AvroValue = Any
"""What fastavro gives."""
Converter = Callable[[AvroValue], object]
TOP_LEVEL_COLUMN: Final = "value"
"""The column of a schema that is no record."""

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_TIMES: Final[Mapping[str, pa.DataType]] = {
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DIGITS_MAX: Final = 38
"""Of Spark's, Delta's and Iceberg's decimals."""


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """A type, how a value becomes it, and which Python values fastavro gives for it."""

    kind: pa.DataType
    convert: Converter
    accepts: tuple[type, ...]
    name: str = ""
    """Of a named type, without its namespace: how unions tell records, enums and fixed apart."""


def avro_columns(schema: object, named: Mapping[str, Any]) -> tuple[pa.Schema, Converter]:
    """The columns of a parsed schema, and from a value to a sequence of theirs.

    `named` holds the types that the schema names, by their full names.
    """
    reader = _Columns(named)
    column = reader.column(schema, "", ())
    if not pa.types.is_struct(column.kind) or _type_of(schema, named) != "record":
        fields = pa.schema([pa.field(TOP_LEVEL_COLUMN, column.kind)])
        return fields, lambda value: (column.convert(value),)
    return pa.schema(list(column.kind)), column.convert


class _Columns:
    """Holds the named types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def column(self, schema: AvroSchema, place: str, within: tuple[str, ...]) -> AvroColumn:
        """`within` are the records around: one that holds itself is no table."""
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            return self._union(schema, place, within)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            return self.column(kind, place, within)
        match kind:
            case "record" | "error":
                return self._record(schema, place, within)
            case "array":
                items = self.column(schema["items"], f"{place}[]", within)
                return AvroColumn(pa.list_(items.kind), _all(items.convert), (list,))
            case "map":
                values = self.column(schema["values"], f"{place}[]", within)
                return AvroColumn(
                    pa.map_(pa.string(), values.kind), _entries(values.convert), (dict,)
                )
        return _scalar(kind, schema if isinstance(schema, dict) else {}, place)

    def _record(self, schema: AvroSchema, place: str, within: tuple[str, ...]) -> AvroColumn:
        name = str(schema["name"])
        if name in within:
            raise PipelineError(
                f"value.schema: {place} is {name} within {name}: a table has no columns for it;"
                " use value.format raw"
            )
        columns = []
        if not schema["fields"]:
            raise PipelineError(f"value.schema: {name} has no fields, so a table no column for it")
        for field in schema["fields"]:
            below = f"{place}.{field['name']}" if place else str(field["name"])
            columns.append((field["name"], self.column(field["type"], below, (*within, name))))
        fields = [pa.field(field_name, column.kind) for field_name, column in columns]
        converters = [(field_name, column.convert) for field_name, column in columns]

        def convert(value: Mapping[str, Any]) -> object:
            return tuple([converter(value[field_name]) for field_name, converter in converters])

        return AvroColumn(pa.struct(fields), convert, (dict,), _unqualified(name))

    def _union(self, schema: Sequence[Any], place: str, within: tuple[str, ...]) -> AvroColumn:
        branches = [
            self.column(branch, place, within)
            for branch in schema
            if _type_of(branch, self._named) != "null"
        ]
        plain = {branch for branch in schema if isinstance(branch, str)} - {"null"}
        if not branches:
            return AvroColumn(pa.null(), lambda value: None, ())
        if len(branches) == 1:
            return _optional(branches[0])
        if len(plain) == len(branches) and plain <= {"int", "long"}:
            return _optional(_scalar("long", {}, place))
        if len(plain) == len(branches) and plain <= {"float", "double"}:
            return _optional(_scalar("double", {}, place))
        return _members(branches)


def _scalar(kind: str, schema: Mapping[str, Any], place: str) -> AvroColumn:
    """A type without others inside. Unknown logical types are their plain types (Avro's rule)."""
    name = _unqualified(str(schema.get("name", "")))
    logical = str(schema.get("logicalType", ""))
    if kind not in _PRIMITIVES:
        raise PipelineError(
            f"value.schema: {place or 'it'} is of type {kind!r}, which Avro has not"
        )
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if precision > _DIGITS_MAX:
            raise PipelineError(
                f"value.schema: {place} is a decimal of {precision} digits; tables have at most"
                f" {_DIGITS_MAX}"
            )
        return AvroColumn(pa.decimal128(precision, scale), _decimal(scale), (Decimal,), name)
    if logical in _TIMES and kind == "long":
        factor = 1000 if logical.endswith("millis") else 1
        return AvroColumn(_TIMES[logical], _timestamp(factor), (datetime,))
    if logical == "date" and kind == "int":
        return AvroColumn(pa.date32(), _same, (date,))
    if logical.startswith("time-") and kind in ("int", "long"):
        unit = 1000 if logical == "time-millis" else 1
        return AvroColumn(_PRIMITIVES[kind], _time_of_day(unit), (time,))
    if logical == "uuid":
        return AvroColumn(pa.string(), _uuid, (UUID,), name)
    convert = _bytes if kind in ("bytes", "fixed") else _same
    return AvroColumn(_PRIMITIVES[kind], convert, _ACCEPTED[kind], name)


_ACCEPTED: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes,),
    "string": (str,),
    "fixed": (bytes,),
    "enum": (str,),
}


def _optional(column: AvroColumn) -> AvroColumn:
    convert = column.convert

    def convert_optional(value: AvroValue) -> object:
        if value is None:
            return None
        return convert(value[1] if type(value) is tuple else value)

    return AvroColumn(column.kind, convert_optional, column.accepts, column.name)


def _members(branches: Sequence[AvroColumn]) -> AvroColumn:
    """A struct with one field per branch. fastavro gives (full name, value) for a named type."""
    count = len(branches)
    # Only a default of the schema is a value of a named type without its name.
    order = sorted(range(count), key=lambda place: bool(branches[place].name))
    by_name = {branch.name: index for index, branch in enumerate(branches) if branch.name}

    def convert(value: AvroValue) -> object:
        if value is None:
            return None
        if type(value) is tuple:
            index, value = by_name[_unqualified(value[0])], value[1]
        else:
            # Not isinstance: True is an int, and a datetime is a date.
            fitting = [place for place in order if type(value) in branches[place].accepts]
            if not fitting:
                raise BadValue(f"a {type(value).__name__} is of none of the union's types")
            index = fitting[0]
        return (None,) * index + (branches[index].convert(value),) + (None,) * (count - index - 1)

    kind = pa.struct([pa.field(f"member{i}", branch.kind) for i, branch in enumerate(branches)])
    return AvroColumn(kind, convert, (object,))


def _same(value: AvroValue) -> object:
    return value


def _bytes(value: AvroValue) -> object:
    """A default is a text of the code points 0 to 255 (Avro's JSON encoding)."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(scale: int) -> Converter:
    def convert(value: AvroValue) -> object:
        if isinstance(value, str):
            unscaled = int.from_bytes(value.encode("latin-1"), "big", signed=True)
            return Decimal(f"{unscaled}e-{scale}")
        return value

    return convert


def _timestamp(factor: int) -> Converter:
    """A plain long, of a writer without the logical type, counts in the reader's unit."""

    def convert(value: AvroValue) -> object:
        return value * factor if isinstance(value, int) else value

    return convert


def _time_of_day(unit: int) -> Converter:
    def convert(value: AvroValue) -> object:
        if not isinstance(value, time):
            return value
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) // unit

    return convert


def _uuid(value: AvroValue) -> object:
    return str(UUID(bytes=value)) if isinstance(value, bytes) else str(value)


def _all(convert: Converter) -> Converter:
    return lambda values: [convert(value) for value in values]


def _entries(convert: Converter) -> Converter:
    return lambda values: [(key, convert(value)) for key, value in values.items()]


def _type_of(schema: AvroSchema, named: Mapping[str, Any]) -> str:
    while isinstance(schema, dict):
        schema = schema["type"]
    if isinstance(schema, list):
        return "union"
    return _type_of(named[schema], named) if schema in named else str(schema)


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]

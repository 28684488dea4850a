"""Protobuf messages as columns, and messages as what Arrow takes for them.

Fields with presence (messages, `optional`, members of a oneof) are null when they are not set, all
others have Protobuf's default. Enums are their names, unsigned 64-bit numbers decimals of 20
digits; Timestamp and the wrappers are plain columns, Struct, Value and ListValue their JSON text.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue

Descriptor = Any
"""google.protobuf.descriptor.Descriptor; its package has no types of its own."""
FieldDescriptor = Any
Message = Any
Converter = Callable[[Any], object]

_KINDS: Final = {
    1: pa.float64(),  # TYPE_DOUBLE
    2: pa.float32(),  # TYPE_FLOAT
    3: pa.int64(),  # TYPE_INT64
    4: pa.decimal128(20, 0),  # TYPE_UINT64
    5: pa.int32(),  # TYPE_INT32
    6: pa.decimal128(20, 0),  # TYPE_FIXED64
    7: pa.int64(),  # TYPE_FIXED32
    8: pa.bool_(),  # TYPE_BOOL
    9: pa.string(),  # TYPE_STRING
    12: pa.binary(),  # TYPE_BYTES
    13: pa.int64(),  # TYPE_UINT32
    15: pa.int32(),  # TYPE_SFIXED32
    16: pa.int64(),  # TYPE_SFIXED64
    17: pa.int32(),  # TYPE_SINT32
    18: pa.int64(),  # TYPE_SINT64
}
_UNSIGNED_64: Final = (4, 6)
_ENUM: Final = 14
_MESSAGE: Final = 11
_GROUP: Final = 10
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_MICROS_MIN: Final = -62_135_596_800_000_000
_MICROS_MAX: Final = 253_402_300_799_999_999
"""The years 1 to 9999, which are Timestamp's and those of every reader of the table."""


def protobuf_columns(
    descriptor: Descriptor,
) -> tuple[pa.Schema, Callable[[Message], Sequence[object]]]:
    """The columns of a message, and from a message to a sequence of theirs."""
    fields, convert = _struct(descriptor, descriptor.full_name, ())
    return pa.schema(fields), convert


def _struct(
    descriptor: Descriptor, place: str, within: tuple[str, ...]
) -> tuple[list[pa.Field], Callable[[Message], Sequence[object]]]:
    """`within` are the messages around: one that holds itself is no table."""
    if descriptor.full_name in within:
        raise PipelineError(
            f"value.schema: {place} is {descriptor.full_name} within itself: a table has no columns"
            " for it; use value.format raw"
        )
    within = (*within, descriptor.full_name)
    fields: list[pa.Field] = []
    converters: list[tuple[str, bool, Converter]] = []
    for field in descriptor.fields:
        kind, convert = _field(field, f"{place}.{field.name}", within)
        fields.append(pa.field(field.name, kind))
        converters.append((field.name, field.has_presence, convert))

    def convert_message(message: Message) -> Sequence[object]:
        row: list[object] = []
        for name, has_presence, convert in converters:
            if has_presence and not message.HasField(name):
                row.append(None)
                continue
            try:
                row.append(convert(getattr(message, name)))
            except BadValue as error:
                raise error.below(name) from None
        return tuple(row)

    return fields, convert_message


def _field(
    field: FieldDescriptor, place: str, within: tuple[str, ...]
) -> tuple[pa.DataType, Converter]:
    if field.type == _MESSAGE and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key_kind, convert_key = _single(entry["key"], place, within)
        item_kind, convert_item = _single(entry["value"], place, within)

        def convert_map(entries: Any) -> object:  # noqa: ANN401  # a map container
            # In the order of keys: Protobuf's own differs from process to process.
            return [(convert_key(key), convert_item(entries[key])) for key in sorted(entries)]

        return pa.map_(key_kind, item_kind), convert_map
    kind, convert = _single(field, place, within)
    if _is_repeated(field):
        return pa.list_(kind), lambda elements: [convert(element) for element in elements]
    return kind, convert


def _single(
    field: FieldDescriptor, place: str, within: tuple[str, ...]
) -> tuple[pa.DataType, Converter]:
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # A number that is newer than the schema stays a number, as Protobuf's open enums have it.
        return pa.string(), lambda number: names.get(number) or str(number)
    if field.type not in (_MESSAGE, _GROUP):
        return _KINDS[field.type], Decimal if field.type in _UNSIGNED_64 else _same
    message = field.message_type
    if message.full_name == "google.protobuf.Timestamp":
        return pa.timestamp("us", tz="UTC"), _timestamp
    if message.full_name in _WRAPPERS:
        kind, convert = _single(message.fields_by_name["value"], place, within)
        return kind, lambda wrapper: convert(wrapper.value)
    if message.full_name in _JSON:
        return pa.string(), _json
    fields, convert_message = _struct(message, place, within)
    if not fields:
        raise PipelineError(
            f"value.schema: {place} is {message.full_name}, which has no fields: a table has no"
            " column for it"
        )
    return pa.struct(fields), convert_message


def _is_repeated(field: FieldDescriptor) -> bool:
    """`label` is going away, `is_repeated` is new in protobuf 6."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _same(value: object) -> object:
    return value


def _timestamp(timestamp: Message) -> object:
    """Microseconds; what is finer is cut off, as tables have no more."""
    micros = timestamp.seconds * 1_000_000 + timestamp.nanos // 1000
    if not _MICROS_MIN <= micros <= _MICROS_MAX:
        raise BadValue(f"{timestamp.seconds} seconds are outside of the years 1 to 9999")
    return micros


def _json(message: Message) -> object:
    from google.protobuf import json_format

    try:
        return json_format.MessageToJson(message, indent=None, sort_keys=True)
    except (json_format.Error, ValueError) as error:
        raise BadValue(f"no JSON: {error}") from None

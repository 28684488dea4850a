"""From a parsed JSON value to what Arrow takes for a type; strict where Spark's from_json guesses.

A number never becomes a time and a text never a number: the same bytes would mean different rows
to different readers. Only STRING takes everything: other values as their JSON text.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue

Reader = Callable[[object], object]
"""Raises BadValue. Never called with None: null stays null."""

_EXACT_INTEGER_MAX: Final = 2**53
"""Integers up to here have one double only: 1.0 is an integer, 1e300 is not."""
_FLOAT32_MAX: Final = 3.4028234663852886e38


def json_reader(kind: pa.DataType) -> Reader:
    """The reader of a type; PipelineError for a type that JSON cannot hold."""
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return _list(json_reader(kind.value_type))
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise PipelineError("value.schema: the keys of a MAP in JSON are STRING")
        return _map(json_reader(kind.item_type))
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_timestamp(kind):
        return _instant if kind.tz else _local_time
    return _SIMPLE[kind]


def row_reader(columns: pa.Schema) -> Callable[[object], Sequence[object]]:
    """The reader of a whole value: a JSON object."""
    read = _struct(pa.struct(list(columns)))

    def read_row(value: object) -> Sequence[object]:
        row = read(value)
        return row if isinstance(row, tuple) else ()

    return read_row


def _struct(kind: pa.DataType) -> Reader:
    readers = [(field.name, json_reader(field.type), not field.nullable) for field in kind]

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        row = []
        for name, reader, is_required in readers:
            try:
                given = value.get(name)
                found = None if given is None else reader(given)
                if found is None and is_required:
                    raise BadValue("it is missing" if name not in value else "it is null")
            except BadValue as error:
                raise error.below(name) from None
            row.append(found)
        return tuple(row)

    return read


def _list(reader: Reader) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, list):
            raise _expected("an array", value)
        elements = []
        for index, element in enumerate(value):
            try:
                elements.append(None if element is None else reader(element))
            except BadValue as error:
                raise error.below(f"[{index}]") from None
        return elements

    return read


def _map(reader: Reader) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        entries = []
        for key, item in value.items():
            try:
                entries.append((_text(key), None if item is None else reader(item)))
            except BadValue as error:
                raise error.below(f"[{key[:40]!a}]") from None
        return entries

    return read


def _integer(bits: int) -> Reader:
    bound = 1 << (bits - 1)

    def read(value: object) -> object:
        if isinstance(value, float | Decimal):
            if not -_EXACT_INTEGER_MAX <= value <= _EXACT_INTEGER_MAX or value % 1:
                raise _expected("an integer", value)
            integer = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            integer = value
        else:
            raise _expected("an integer", value)
        if not -bound <= integer < bound:
            raise BadValue(f"{integer} is too large for {bits} bits")
        return integer

    return read


def _double(value: object) -> object:
    if type(value) is float or type(value) is int or isinstance(value, Decimal):
        number = float(value)
        if not math.isfinite(number):
            raise BadValue(f"{value} is too large for a double")
        return number
    raise _expected("a number", value)


def _float(value: object) -> object:
    number = _double(value)
    if isinstance(number, float) and abs(number) > _FLOAT32_MAX:
        raise BadValue(f"{value} is too large for a float")
    return number


def _decimal(value: object) -> object:
    """A number, or a text of one: how JSON carries money past readers that know only doubles."""
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            raise _expected("a decimal number", value) from None
    if type(value) is int:
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise _expected("a decimal number", value)
    if not value.is_finite():
        raise BadValue(f"{value} where a decimal number is expected")
    return value


def _boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _text(value: object) -> object:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadValue("a text with half of a surrogate pair, which is no Unicode") from None
    return value


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        raise _expected("bytes in base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _expected("bytes in base64", value) from None


def _date(value: object) -> object:
    if not isinstance(value, str):
        raise _expected("a date as text (2026-01-31)", value)
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise _expected("a date (2026-01-31)", value) from None


def _instant(value: object) -> object:
    """Without an offset it is UTC: the time zone of whoever reads must not change the row."""
    at = _time(value)
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise BadValue(f"{value} is outside of the years 1 to 9999") from None


def _local_time(value: object) -> object:
    at = _time(value)
    if at.tzinfo is not None:
        raise _expected("a time without an offset (2026-01-31T12:00:00)", value)
    return at


def _time(value: object) -> datetime:
    if not isinstance(value, str):
        raise _expected("a time as text (2026-01-31T12:00:00Z)", value)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise _expected("a time (2026-01-31T12:00:00Z)", value) from None


def _expected(wanted: str, value: object) -> BadValue:
    text = json.dumps(value, default=float)
    return BadValue(f"{text if len(text) <= 40 else text[:37] + '...'} where {wanted} is expected")


_SIMPLE: Final = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _text,
    pa.binary(): _bytes,
    pa.date32(): _date,
}

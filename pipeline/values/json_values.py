"""Values in JSON, with the columns of a DDL text or of a JSON Schema.

Fields that are not among the columns are left out, missing ones are null. In Confluent's wire
format the five bytes before the text are skipped: the columns, not the writer's schema, decide.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa

from odradek.pipeline.values.decoded_values import BadValue, DecodedValues, decode_rows
from odradek.pipeline.values.json_readers import row_reader
from odradek.pipeline.values.json_schema import json_schema_columns
from odradek.pipeline.values.spark_ddl import spark_ddl_schema
from odradek.pipeline.values.wire_format import split_wire_format


class JsonValues:
    """`schema` is a text: DDL, or a JSON Schema if it begins with a brace."""

    def __init__(self, schema: str, *, has_wire_format: bool = False) -> None:
        self._schema = schema
        self._has_wire_format = has_wire_format
        is_json_schema = schema.lstrip().startswith("{")
        self._strict = json_schema_columns(schema) if is_json_schema else spark_ddl_schema(schema)
        self._decode_row = self._row_decoder()

    def __reduce__(self) -> tuple[object, ...]:
        """Readers are closures: only the schema travels."""
        return _json_values, (self._schema, self._has_wire_format)

    def columns(self) -> pa.Schema:
        """All nullable, also those that a value must have."""
        return pa.schema([field.with_nullable(True) for field in self._strict])

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        return decode_rows(values, self.columns(), self._decode_row)

    def fingerprint(self) -> str:
        """Of the columns, however they were written."""
        text = f"json {self._has_wire_format} {self._strict.to_string()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _row_decoder(self) -> Callable[[bytes], Sequence[object]]:
        read_row = row_reader(self._strict)
        has_wire_format = self._has_wire_format
        # Doubles are quicker; only a decimal must not pass through one.
        parse_float = Decimal if "decimal" in str(self._strict.types) else None

        def decode_row(value: bytes) -> Sequence[object]:
            if has_wire_format:
                _, value = split_wire_format(value)
            try:
                text = value.decode()
                parsed = json.loads(text, parse_float=parse_float, parse_constant=_constant)
            except BadValue:
                raise
            except (ValueError, RecursionError) as error:
                raise BadValue(f"not JSON: {error}") from None
            return read_row(parsed)

        return decode_row


def _json_values(schema: str, has_wire_format: bool) -> JsonValues:
    return JsonValues(schema, has_wire_format=has_wire_format)


def _constant(name: str) -> object:
    raise BadValue(f"not JSON: {name}")

"""Values in Avro: bare ones of one schema, or those of a registry, each with its writer's schema.

Columns are those of the reader's schema (given, or the newest when the job started). A writer's
schema is resolved to it by Avro's rules: new fields take their defaults, dropped ones are left out.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.avro_columns import AvroSchema, avro_columns
from odradek.pipeline.values.decoded_values import BadValue, DecodedValues, decode_rows
from odradek.pipeline.values.registry import RegisteredSchema, SchemaRegistry
from odradek.pipeline.values.wire_format import split_wire_format


class AvroValues:
    """With a registry, values are in Confluent's wire format."""

    def __init__(self, schema: RegisteredSchema, registry: SchemaRegistry | None = None) -> None:
        self._schema = schema
        self._registry = registry
        self._reader, named = _parse(schema)
        self._columns, self._to_row = avro_columns(self._reader, named)
        self._writers: dict[int, AvroSchema] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Converters are closures: only the schemas travel."""
        return AvroValues, (self._schema, self._registry)

    def columns(self) -> pa.Schema:
        """The fields of the reader's record."""
        return self._columns

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        return decode_rows(values, self._columns, self._row_decoder())

    def fingerprint(self) -> str:
        """Of the reader's schema."""
        canonical = json.dumps(json.loads(self._schema.text), sort_keys=True)
        text = f"avro {self._registry is not None} {canonical} {self._schema.references}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _row_decoder(self) -> Callable[[bytes], Sequence[object]]:
        from fastavro import schemaless_reader
        from fastavro.read import SchemaResolutionError

        reader, to_row = self._reader, self._to_row

        def decode_row(value: bytes) -> Sequence[object]:
            writer, reader_schema = reader, None
            schema_id = None
            if self._registry is not None:
                schema_id, value = split_wire_format(value)
                writer, reader_schema = self._writer(schema_id, self._registry), reader
            stream = io.BytesIO(value)
            try:
                datum = schemaless_reader(stream, writer, reader_schema, return_named_type=True)
            except SchemaResolutionError as error:
                raise BadValue(f"schema {schema_id} does not fit the columns: {error}") from None
            except (EOFError, IndexError, StopIteration, ValueError) as error:
                raise BadValue(f"not a value of its Avro schema: {error!r}") from None
            rest = len(value) - stream.tell()
            if rest:
                raise BadValue(f"not a value of its Avro schema: {rest} bytes are left over")
            row = to_row(datum)
            return row if isinstance(row, tuple) else ()

        return decode_row

    def _writer(self, schema_id: int, registry: SchemaRegistry) -> AvroSchema:
        if schema_id not in self._writers:
            registered = registry.by_id(schema_id)
            try:
                self._writers[schema_id], _ = _parse(registered)
            except PipelineError as error:
                # The registry answered: what is wrong is the id that this one record holds.
                raise BadValue(f"schema {schema_id} of the registry: {error}") from None
        return self._writers[schema_id]


def _parse(schema: RegisteredSchema) -> tuple[AvroSchema, Mapping[str, Any]]:
    """As fastavro wants it, and all named types by their full names."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError:
        raise PipelineError(
            "value.format avro needs the package fastavro: pip install 'odradek[avro]'"
        ) from None
    named: dict[str, dict[Any, Any]] = {}
    try:
        for _, text in schema.references:
            parse_schema(_json(text), named_schemas=named)
        return parse_schema(_json(schema.text), named_schemas=named), named
    except (SchemaParseException, UnknownType, KeyError, TypeError) as error:
        raise PipelineError(f"the Avro schema cannot be read: {error}") from None


def _json(text: str) -> AvroSchema:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PipelineError(f"the Avro schema is not JSON: {error}") from None

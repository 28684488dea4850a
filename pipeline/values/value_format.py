"""How the bytes of values (or keys) become columns: raw, JSON, Avro or Protobuf.

A format is made once, on the driver: files are read and the newest schema of a subject is asked for
there. What is sent to executors holds the schema and decides alike everywhere: the same bytes give
the same row.
"""

from typing import Protocol

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.avro_values import AvroValues
from odradek.pipeline.values.decoded_values import DecodedValues
from odradek.pipeline.values.json_values import JsonValues
from odradek.pipeline.values.protobuf_values import (
    ProtobufValues,
    descriptor_set_files,
    registered_files,
)
from odradek.pipeline.values.raw_values import RawValues
from odradek.pipeline.values.registry import RegisteredSchema, SchemaRegistry
from odradek.pipeline.values.schema_text import schema_bytes, schema_text

KINDS = ("raw", "json", "avro", "protobuf")


class ValueDecoder(Protocol):
    """Picklable, and cheap to send."""

    def columns(self) -> pa.Schema:
        """The columns of a value, all nullable: a tombstone is a row of nulls."""

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """Raises PipelineError if a schema registry does not answer, and nothing else."""

    def fingerprint(self) -> str:
        """Hexadecimal; another one for another format or schema."""


def value_format(
    kind: str,
    *,
    schema: str | None = None,
    message: str | None = None,
    registry_url: str | None = None,
    subject: str | None = None,
) -> ValueDecoder:
    """The format of `kind`. `schema` is a text, or a path of a file.

    json: a Spark DDL text (`id BIGINT, at TIMESTAMP`) or a JSON Schema; avro: an Avro schema;
    protobuf: a file of `protoc --descriptor_set_out --include_imports`, with `message` for the name
    of the message. With `registry_url` (`https://user:password@host:port` for basic authentication)
    values are in Confluent's wire format; without `schema` the columns are then those of the newest
    version of `subject`, which is `<topic>-value` by Confluent's default.
    """
    registry = SchemaRegistry(registry_url) if registry_url else None
    match kind:
        case "raw":
            return RawValues()
        case "json":
            text = _text(kind, schema, registry, subject).text
            return _checked(JsonValues(text, has_wire_format=registry is not None))
        case "avro":
            return _checked(AvroValues(_text(kind, schema, registry, subject), registry))
        case "protobuf":
            return _checked(_protobuf(schema, message, registry, subject))
    raise PipelineError(f"value.format is {kind!r}; it is one of {', '.join(KINDS)}")


def _text(
    kind: str, schema: str | None, registry: SchemaRegistry | None, subject: str | None
) -> RegisteredSchema:
    if schema is not None:
        return RegisteredSchema(schema_text(schema))
    return _newest(kind, registry, subject, serialized=False)


def _protobuf(
    schema: str | None, message: str | None, registry: SchemaRegistry | None, subject: str | None
) -> ProtobufValues:
    if schema is None:
        newest = _newest("protobuf", registry, subject, serialized=True)
        return ProtobufValues(registered_files(newest), message, registry)
    if message is None:
        raise PipelineError(f"value.schema {schema} needs value.message, the name of the message")
    return ProtobufValues(descriptor_set_files(schema_bytes(schema), schema), message, registry)


def _newest(
    kind: str, registry: SchemaRegistry | None, subject: str | None, *, serialized: bool
) -> RegisteredSchema:
    if registry is None or subject is None:
        raise PipelineError(
            f"value.format {kind} needs value.schema (a text or a file), or value.registry with a"
            " subject"
        )
    return registry.latest(subject, serialized=serialized)


def _checked(decoder: ValueDecoder) -> ValueDecoder:
    """Spark's names of columns ignore case, so two must not differ by it alone."""
    seen: set[str] = set()
    for name in decoder.columns().names:
        if name.lower() in seen:
            raise PipelineError(
                f"value.schema has the column {name} twice (upper and lower case are one in Spark);"
                " rename one"
            )
        seen.add(name.lower())
    return decoder

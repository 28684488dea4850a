"""How the bytes of values (or keys) become columns: raw, JSON, Avro or Protobuf.

A format is made once, on the driver: files are read and the newest schema of a subject is asked for
there. What is sent to executors holds the schema and decides alike everywhere: the same bytes give
the same row.
"""

from typing import Protocol

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import DecodedValues

KINDS = ("raw", "json", "avro", "protobuf")


class ValueFormat(Protocol):
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
) -> ValueFormat:
    """The format of `kind`. `schema` is a text, or a path of a file.

    json: a Spark DDL text (`id BIGINT, at TIMESTAMP`) or a JSON Schema; avro: an Avro schema;
    protobuf: a file of `protoc --descriptor_set_out --include_imports`, with `message` for the name
    of the message. With `registry_url` (`https://user:password@host:port` for basic authentication)
    values are in Confluent's wire format; without `schema` the columns are then those of the newest
    version of `subject`, which is `<topic>-value` by Confluent's default.
    """
    raise PipelineError(f"value.format is {kind!r}; it is one of {', '.join(KINDS)}")

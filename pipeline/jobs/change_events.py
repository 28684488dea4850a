"""Values as changes of a row: what a record of a compacted or a Debezium topic does to its key.

Decoders of values for `rows_of`, with one more column, which says whether the row is deleted. A
compacted topic has whole rows, and tombstones delete. A Debezium topic has envelopes: `op` says
what happened (c, r and u give the row in `after`, d deletes), and a tombstone deletes again.
"""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue, DecodedValues, decode_rows
from odradek.pipeline.values.json_readers import row_reader
from odradek.pipeline.values.json_schema import json_schema_columns
from odradek.pipeline.values.schema_text import schema_text
from odradek.pipeline.values.spark_ddl import spark_ddl_schema
from odradek.pipeline.values.value_format import ValueDecoder
from odradek.pipeline.values.wire_format import split_wire_format

IS_DELETE: Final = "odradek_is_delete"
_UPSERTS: Final = frozenset({"c", "r", "u"})
"""Created, read by a snapshot, updated."""


class CompactedChanges:
    """Each value is the whole row; a null value deletes it."""

    def __init__(self, values: ValueDecoder) -> None:
        self._values = values

    def columns(self) -> pa.Schema:
        """Those of the row, and whether it is deleted."""
        return self._values.columns().append(pa.field(IS_DELETE, pa.bool_()))

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        found = self._values.decode(values)
        is_delete = pc.is_null(values).filter(found.good)
        return DecodedValues(_with(found.table, is_delete), found.good, found.problems)

    def fingerprint(self) -> str:
        """Of the rows."""
        return f"compacted {self._values.fingerprint()}"


class DebeziumJson:
    """Envelopes in JSON, with or without `schema` and `payload` around them; `schema` is that of
    the row. With `has_wire_format` five bytes of Confluent's before each are skipped."""

    def __init__(self, schema: str, *, has_wire_format: bool = False) -> None:
        text = schema_text(schema)
        is_json_schema = text.lstrip().startswith("{")
        self._strict = json_schema_columns(text) if is_json_schema else spark_ddl_schema(text)
        self._has_wire_format = has_wire_format
        self._decode_row = self._row_decoder()

    def columns(self) -> pa.Schema:
        """Those of the row, and whether it is deleted."""
        row = [field.with_nullable(True) for field in self._strict]
        return pa.schema([*row, pa.field(IS_DELETE, pa.bool_())])

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        found = decode_rows(values, self.columns(), self._decode_row)
        # A tombstone is a row of nulls.
        is_delete = pc.fill_null(found.table.column(IS_DELETE), True)
        table = found.table.drop_columns([IS_DELETE])
        return DecodedValues(_with(table, is_delete), found.good, found.problems)

    def fingerprint(self) -> str:
        """Of the rows."""
        return f"debezium {self._has_wire_format} {self._strict.to_string()}"

    def _row_decoder(self) -> Callable[[bytes], Sequence[object]]:
        read_row = row_reader(self._strict)
        deleted: Sequence[object] = (*(None for _ in self._strict), True)
        # Doubles are quicker; only a decimal must not pass through one.
        parse_float = Decimal if "decimal" in str(self._strict.types) else None

        def decode_row(value: bytes) -> Sequence[object]:
            if self._has_wire_format:
                _, value = split_wire_format(value)
            try:
                envelope = json.loads(value, parse_float=parse_float)
            except (ValueError, RecursionError) as error:
                raise BadValue(f"not JSON: {error}") from None
            if isinstance(envelope, dict) and "payload" in envelope and "op" not in envelope:
                envelope = envelope["payload"]
            if not isinstance(envelope, dict) or "op" not in envelope:
                raise BadValue("no envelope of Debezium: it has no op")
            if _is_delete(envelope["op"]):
                return deleted
            try:
                return (*read_row(envelope.get("after")), False)
            except BadValue as error:
                raise error.below("after") from None

        return decode_row


class DebeziumRecords:
    """Envelopes in Avro or Protobuf: the schema of values is that of the envelope."""

    def __init__(self, values: ValueDecoder) -> None:
        """PipelineError if the schema is none of an envelope."""
        self._values = values
        columns = values.columns()
        kind = columns.field("after").type if "after" in columns.names else pa.null()
        if not pa.types.is_struct(kind) or "op" not in columns.names:
            raise PipelineError(
                "the schema of values is no envelope of Debezium (after, op): take the envelope's,"
                " or --envelope none"
            )
        self._row = pa.schema([kind.field(index) for index in range(kind.num_fields)])

    def columns(self) -> pa.Schema:
        """Those of the row, and whether it is deleted."""
        row = [field.with_nullable(True) for field in self._row]
        return pa.schema([*row, pa.field(IS_DELETE, pa.bool_())])

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        found = self._values.decode(values)
        operations = found.table.column("op").to_pylist()
        indices = [index for index, is_good in enumerate(found.good.to_pylist()) if is_good]
        is_null = pc.is_null(values).filter(found.good).to_pylist()
        problems, is_delete = dict(found.problems), []
        for index, operation, is_tombstone in zip(indices, operations, is_null, strict=True):
            try:
                is_delete.append(is_tombstone or _is_delete(operation))
            except BadValue as error:
                problems[index] = str(error)
                is_delete.append(None)
        deleted = pa.array(is_delete, pa.bool_())
        after = found.table.column("after").combine_chunks()
        names = self.columns().names[:-1]
        table = _with(pa.Table.from_arrays(after.flatten(), names=names), deleted)
        good = pa.array([index not in problems for index in range(len(values))], pa.bool_())
        kept = table.filter(pc.is_valid(deleted)).cast(self.columns())
        return DecodedValues(kept, good, problems)

    def fingerprint(self) -> str:
        """Of the envelopes."""
        return f"debezium {self._values.fingerprint()}"


def _is_delete(operation: object) -> bool:
    if operation == "d":
        return True
    if operation in _UPSERTS:
        return False
    raise BadValue(f"op is {operation!r}, which changes no row: c, r, u and d do", "op")


def _with(table: pa.Table, is_delete: pa.Array) -> pa.Table:
    return table.append_column(pa.field(IS_DELETE, pa.bool_()), is_delete)

"""Values as they are: one column of bytes."""

import pyarrow as pa

from odradek.pipeline.values.decoded_values import DecodedValues

RAW_COLUMN = "kafka_value"


class RawValues:
    """Every value is good, a tombstone is null."""

    def columns(self) -> pa.Schema:
        """The bytes."""
        return pa.schema([pa.field(RAW_COLUMN, pa.binary())])

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """The same array as a table: nothing is copied."""
        table = pa.Table.from_arrays([values], schema=self.columns())
        return DecodedValues(table, pa.repeat(True, len(values)))

    def fingerprint(self) -> str:
        """There is no schema."""
        return "raw"

"""The data source `odradek` of Spark: `spark.read`, `readStream`, `write` and `writeStream`.

`pyspark_odradek` at the top level registers it (Spark looks for modules of such names), so that
`format("odradek")` works wherever this package is installed, on the driver and on executors.
Spark imports it for every query that uses any data source in Python: it loads its parts only when
they are used. It needs pyspark alone to be imported: if that failed, Spark would tell people that
there is no data source of this name, and not why.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.pipeline.errors import PipelineError

_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)


def kafka_columns(*, with_headers: bool) -> StructType:
    """The columns of the stock Kafka connector: KAFKA_SCHEMA in Spark's types."""
    return StructType([*_COLUMNS, _HEADERS] if with_headers else list(_COLUMNS))


class OdradekDataSource(DataSource):
    """Topics as tables, over the Kafka wire without a JVM connector."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "odradek"

    def schema(self) -> StructType:
        """Kafka's columns. Spark asks for them before anything else."""
        with _needs_extra():
            import_module("odradek.pipeline.source.options")
        options = {name.lower(): value for name, value in self.options.items()}
        return kafka_columns(with_headers=options.get("includeheaders", "").lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        from odradek.pipeline.source.batch_reader import FilteredBatchReader, KafkaBatchReader
        from odradek.pipeline.source.options import source_options

        options = source_options(self.options, is_stream=False)
        _check_columns(schema, with_headers=options.include_headers)
        return (FilteredBatchReader if options.is_pushing_filters else KafkaBatchReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads a stream."""
        from odradek.pipeline.source.options import source_options
        from odradek.pipeline.source.stream_reader import KafkaStreamReader

        options = source_options(self.options, is_stream=True)
        _check_columns(schema, with_headers=options.include_headers)
        return KafkaStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes a DataFrame."""
        with _needs_extra():
            from odradek.pipeline.sink.writers import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes a stream's batches, each exactly once."""
        with _needs_extra():
            from odradek.pipeline.sink.writers import stream_writer

        return stream_writer(schema, self.options, overwrite)


@contextmanager
def _needs_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"format odradek needs the package {error.name}, which {sys.executable} has not:"
            " pip install 'odradek[spark]' there"
        ) from None


def _check_columns(schema: StructType, *, with_headers: bool) -> None:
    if schema != kafka_columns(with_headers=with_headers):
        raise PipelineError(
            "the columns of Kafka records are fixed: remove .schema(...) and take value apart with"
            " columns, for example from_json"
        )

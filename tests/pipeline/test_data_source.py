"""The data source as Spark's workers use it: its columns, its parts, and how it is found."""

import pickle  # noqa: TID251  # as Spark sends it to its workers
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from odradek.pipeline.data_source import OdradekDataSource, kafka_columns
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import KAFKA_SCHEMA
from odradek.pipeline.source.batch_reader import FilteredBatchReader, KafkaBatchReader
from pyspark_odradek import DefaultSource

ROOT = Path(__file__).parents[2]
NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def source_of(**options: str) -> OdradekDataSource:
    return OdradekDataSource(CaseInsensitiveDict({**NEEDED, **options}))


def test_the_columns_are_those_that_the_records_are_decoded_into() -> None:
    """Spark compares the two schemas, nullability included."""
    decoded = to_arrow_schema(kafka_columns(with_headers=True), timezone="UTC")
    assert decoded.equals(KAFKA_SCHEMA)
    names = source_of().schema().names
    assert names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source_of(includeHeaders="TRUE").schema().names == [*names, "headers"]


def test_another_schema_is_refused_by_both_readers() -> None:
    other = StructType().add("value", "string")
    source = source_of()
    for reader in (source.reader, source.streamReader):
        with pytest.raises(PipelineError, match=r"remove \.schema"):
            reader(other)


def test_filters_are_pushed_on_demand_because_spark_refuses_them_otherwise() -> None:
    source = source_of()
    assert type(source.reader(source.schema())) is KafkaBatchReader
    pushing = source_of(pushFilters="true")
    assert type(pushing.reader(pushing.schema())) is FilteredBatchReader


def test_wrong_options_are_told_when_a_reader_is_made() -> None:
    wrong = source_of(startingOffsets="beginning")
    with pytest.raises(PipelineError, match="startingOffsets"):
        wrong.reader(wrong.schema())
    ended = source_of(endingOffsets="latest")
    with pytest.raises(PipelineError, match="a stream has no end"):
        ended.streamReader(ended.schema())


def test_spark_finds_the_source_by_the_name_of_a_module() -> None:
    found = [info.name for info in pkgutil.iter_modules([str(ROOT)])]
    assert [name for name in found if name.startswith("pyspark_")] == ["pyspark_odradek"]
    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "odradek"
    assert pickle.loads(pickle.dumps(DefaultSource)) is OdradekDataSource


def test_its_parts_are_loaded_only_when_they_are_used() -> None:
    """Spark imports the module for queries of any data source in Python."""
    code = (
        "import sys, pyspark_odradek;"
        "print([name for name in sys.modules if name.startswith("
        "('confluent_kafka', 'odradek.pipeline.sink.', 'odradek.pipeline.wire.partition_reader'))])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"

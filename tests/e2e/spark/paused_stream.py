"""A stream from a topic to a topic whose sink stops at named moments: test_sink_kill.py starts it.

`python -m tests.e2e.spark.paused_stream OPTIONS` with OPTIONS in JSON (StreamOptions). A moment is
asked for by a file of its name; the sink answers with a file `<name>.reached` and goes on when the
first one is gone. So whoever is to be killed is killed exactly there.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.pipeline.data_source import OdradekDataSource
from odradek.pipeline.sink.writers import stream_writer
from tests.support.waiting import wait_until

PREFIX: Final = "copy"
"""Transactional ids and groups are `copy-0`, `copy-1`, ..."""
ROWS_PER_BATCH: Final = 300
PAUSE_S: Final = 240.0
SENT: Final = "sent-{}"
"""A task has sent its rows and has not committed."""
COMMITTED: Final = "committed-{}"
"""A task has committed, and Spark does not know it."""
ALL: Final = "all"
"""All tasks have committed, and Spark has not."""


@dataclass(frozen=True)
class StreamOptions:
    """From where to where, and the folder of the moments."""

    bootstrap_servers: str
    source: str
    topic: str
    checkpoint: str
    moments: str
    is_last: bool = False
    """Whether it ends when all that is there has moved."""


class PausedSink(DataSource):
    """Our sink with an option `moments`."""

    @classmethod
    def name(cls) -> str:
        return "paused"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = dict(self.options)
        moments = options.pop("moments")
        return _PausedWriter(moments, stream_writer(schema, options, overwrite))


class _PausedWriter(DataSourceStreamArrowWriter):
    def __init__(self, moments: str, inner: DataSourceStreamArrowWriter) -> None:
        self._moments = moments
        self._inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from iterator
            self._pause(SENT.format(task))

        message = self._inner.write(rows())
        self._pause(COMMITTED.format(task))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.commit(list(messages), batchId)
        self._pause(ALL)

    def _pause(self, moment: str) -> None:
        asked = Path(self._moments, moment)
        if asked.exists():
            asked.with_suffix(".reached").touch()
            wait_until(lambda: not asked.exists(), timeout_s=PAUSE_S, what="to go on")


def main(options: StreamOptions) -> None:
    """Copy until the query fails, or all is copied."""
    spark = (
        # A task may fail three times before its query does, as on a cluster.
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.warehouse.dir", f"{options.checkpoint}-warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(OdradekDataSource)
    spark.dataSource.register(PausedSink)
    copied = (
        spark.readStream.format("odradek")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
        .select("key", "value", "partition")
        .writeStream.format("paused")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("topic", options.topic)
        .option("transactionalIdPrefix", PREFIX)
        .option("checkpointLocation", options.checkpoint)
        .option("moments", options.moments)
    )
    if options.is_last:
        copied = copied.trigger(availableNow=True)
    copied.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(StreamOptions(**json.loads(sys.argv[1])))

"""The sink in a driver that dies at a named moment: what test_sink.py starts as a process.

`python -m tests.e2e.spark.killing_sink OPTIONS` with OPTIONS in JSON (DriverOptions) runs a stream
of numbers into a topic until it is stopped or kills itself.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from odradek.pipeline.sink.writers import stream_writer

ROWS_A_BATCH = 6
TASKS = 3
BATCHES = 20


@dataclass(frozen=True)
class DriverOptions:
    """Where it writes, and where it finds when to die."""

    bootstrap_servers: str
    topic: str
    checkpoint: str
    plan: str
    """A file with a KillPlan in JSON. It is deleted before the kill; without it nobody dies."""


@dataclass(frozen=True)
class KillPlan:
    """`moment`: sent (a task has sent its rows and not committed), committed (a task has committed
    and Spark does not know it), all (all tasks have, and Spark has not)."""

    moment: str
    batch: int
    task: int = 0


class KillingSink(DataSource):
    """Our sink, and SIGKILL for Spark's JVM and its Python when the plan says so."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = dict(self.options)
        return _KillingWriter(
            options.pop("plan"),
            [int(pid) for pid in options.pop("pids").split(",")],
            stream_writer(schema, options, overwrite),
        )


class _KillingWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: str, pids: list[int], inner: DataSourceStreamArrowWriter) -> None:
        self._plan = plan
        self._pids = pids
        self._inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        task = context.partitionId()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from iterator
            self._die_at(KillPlan("sent", batch, task))

        message = self._inner.write(rows())
        self._die_at(KillPlan("committed", batch, task))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.commit(list(messages), batchId)
        self._die_at(KillPlan("all", batchId))

    def _die_at(self, now: KillPlan) -> None:
        plan = Path(self._plan)
        if plan.exists() and json.loads(plan.read_text()) == asdict(now):
            plan.unlink()
            for pid in self._pids:
                os.kill(pid, signal.SIGKILL)
            # This process is Spark's, and dies with the JVM; it must not go on before.
            signal.pause()


def main(options: DriverOptions) -> None:
    """Write BATCHES batches of ROWS_A_BATCH numbers in TASKS tasks each, and some more."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{options.checkpoint}-warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KillingSink)
    assert spark._jvm is not None
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_A_BATCH)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("killing")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("topic", options.topic)
        .option("checkpointLocation", options.checkpoint)
        .option("plan", options.plan)
        .option("pids", f"{jvm},{os.getpid()}")
        .start()
    )
    while not (query.lastProgress and query.lastProgress["batchId"] >= BATCHES - 1):
        query.awaitTermination(0.1)  # type: ignore[arg-type]  # it takes fractions
    query.stop()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(DriverOptions(**json.loads(sys.argv[1])))

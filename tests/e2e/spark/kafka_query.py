"""A program with `format("odradek")` as its source and its sink, for any master.

python -m tests.e2e.spark.kafka_query MASTER BOOTSTRAP SOURCE SINK CHECKPOINT

It copies a topic by a stream until there is nothing more, and prints how many records a batch reads
from the copy.
"""

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    master, bootstrap, source, sink, checkpoint = arguments
    spark = (
        SparkSession.builder.master(master)
        .appName("query")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    servers = {"kafka.bootstrap.servers": bootstrap}
    stream: DataStreamReader = spark.readStream.format("odradek").options(**servers)
    copied = stream.option("subscribe", source).option("startingOffsets", "earliest").load()
    query = (
        copied.select("key", "value", "partition")
        .writeStream.format("odradek")
        .options(**servers, topic=sink, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batch: DataFrameReader = spark.read.format("odradek").options(**servers)
    committed = batch.options(**{"subscribe": sink, "kafka.isolation.level": "read_committed"})
    # Grouped, so that rows travel between the executors.
    counts = committed.load().groupBy("partition").count().collect()
    print(sorted((row["partition"], row["count"]) for row in counts))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

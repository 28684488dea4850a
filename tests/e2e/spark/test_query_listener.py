"""The lag of a query with the stock connector, through Spark itself."""

import os
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.jobs.lag import group_lag
from odradek.pipeline.jobs.query_listener import KafkaProgressListener
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.e2e.spark.conftest import JARS
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.mark.skipif(not os.environ.get(JARS), reason=f"{JARS} names no folder of jars")
def test_a_query_of_the_stock_connector_has_a_group_whose_lag_becomes_zero(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    name = f"query-{uuid4().hex[:12]}"
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}
    records = TopicRecords(properties)
    records.create(name, partitions=2)
    records.send(name, [b"v"] * 100)
    options = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": name}
    listener = KafkaProgressListener(options)
    spark.streams.addListener(listener)
    rows = spark.readStream.format("kafka").options(startingOffsets="earliest", **options).load()
    query = (
        rows.writeStream.format("noop")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:

            def lags() -> list[tuple[int, int]]:
                found = group_lag(cluster, properties, f"pipe.{name}", timeout_s=30)
                return [(each.committed, each.records) for each in found]

            wait_until(lambda: lags() == [(100, 0), (0, 0)], timeout_s=120, what="lag is 0")
            records.send(name, [b"v"] * 7, partition=1)
            wait_until(lambda: lags() == [(100, 0), (7, 0)], timeout_s=120, what="lag is 0 again")
            query.stop()
            records.send(name, [b"v"] * 3, partition=1)
            assert lags() == [(100, 0), (7, 3)]
    finally:
        query.stop()
        spark.streams.removeListener(listener)

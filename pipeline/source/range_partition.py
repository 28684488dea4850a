"""What a task reads: one range of offsets of one partition, as Spark's input partition.

The driver pickles it; a task opens its own connections and closes them at its end.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from odradek.pipeline.errors import OffsetsLost, TopicRecreated
from odradek.pipeline.kafka_types import EARLIEST, PartitionRange
from odradek.pipeline.source.cluster_offsets import open_cluster
from odradek.pipeline.source.options import SourceOptions
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition

_log = logging.getLogger(__name__)


class KafkaRangePartition(InputPartition):
    """A range of offsets."""

    def __init__(self, wanted: PartitionRange) -> None:
        super().__init__(None)
        self.wanted = wanted


def read_range_partition(
    options: SourceOptions, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of the range. Spark gives a partition without one if a batch has no ranges."""
    if not isinstance(partition, KafkaRangePartition):
        return
    with open_cluster(options) as cluster:
        if options.fail_on_data_loss:
            yield from _read(cluster, options, partition.wanted)
        else:
            yield from _read_what_is_left(cluster, options, partition.wanted)


def _read(
    cluster: KafkaCluster, options: SourceOptions, wanted: PartitionRange
) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_partition(
            cluster,
            wanted,
            read_committed=options.is_read_committed,
            with_headers=options.include_headers,
            fetch_max_bytes=options.fetch_max_bytes,
        )
    except OffsetsLost as error:
        raise OffsetsLost(f"{error}; failOnDataLoss=false reads on without them") from error


def _read_what_is_left(
    cluster: KafkaCluster, options: SourceOptions, wanted: PartitionRange
) -> Iterator[pa.RecordBatch]:
    """The same, but it goes on above what was deleted, and ends where the topic is another one."""
    start = wanted.start
    while start < wanted.end:
        try:
            for batch in _read(cluster, options, replace(wanted, start=start)):
                yield batch
                if batch.num_rows:
                    start = batch.column("offset")[-1].as_py() + 1
        except OffsetsLost as error:
            times = {wanted.name: EARLIEST}
            found = cluster.list_offsets(times, read_committed=False)[wanted.name].offset
            if found <= start:
                raise
            _log.warning("failOnDataLoss=false: goes on at offset %d: %s", found, error)
            start = found
        except TopicRecreated as error:
            _log.warning("failOnDataLoss=false: reads nothing of %s: %s", wanted.name, error)
            return
        else:
            return

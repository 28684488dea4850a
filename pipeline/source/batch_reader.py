"""Reads a batch: the ranges between the options' two bounds, split for tasks.

`partitions` runs once on the driver and asks the cluster; `read` runs in tasks. Between the two
Spark pickles the reader, so it holds options and filters only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.source.cluster_offsets import ClusterOffsets, open_cluster
from odradek.pipeline.source.filters import PushedFilters, push_filters
from odradek.pipeline.source.offsets import SourceOffsets
from odradek.pipeline.source.options import SourceOptions
from odradek.pipeline.source.planning import split_ranges
from odradek.pipeline.source.range_partition import KafkaRangePartition, read_range_partition


class KafkaBatchReader(DataSourceReader):
    """Reads the ranges of a batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """One or more for each partition that has records in the range."""
        with open_cluster(self._options) as cluster:
            offsets = ClusterOffsets(cluster, self._options)
            ranges = batch_ranges(offsets.starting(), offsets.ending())
            ranges = self._narrow(offsets, ranges)
        pieces = split_ranges(
            list(ranges.values()),
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [KafkaRangePartition(each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_range_partition(self._options, partition)

    def _narrow(
        self, offsets: ClusterOffsets, ranges: Mapping[PartitionName, PartitionRange]
    ) -> dict[PartitionName, PartitionRange]:
        """What the filters leave of the ranges."""
        filters = self._filters
        kept = {name: filters.narrow(each) for name, each in ranges.items() if filters.keeps(name)}
        if filters.timestamp_min_ms is None:
            return kept
        starts = offsets.at_time(kept, filters.timestamp_min_ms)
        return {
            name: replace(each, start=max(each.start, starts[name])) for name, each in kept.items()
        }


class FilteredBatchReader(KafkaBatchReader):
    """The same with `pushFilters`, a method that Spark refuses unless its configuration
    spark.sql.python.filterPushdown.enabled is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what makes ranges narrower. Returns what Spark has to apply."""
        self._filters, left = push_filters(filters)
        return left


def batch_ranges(start: SourceOffsets, end: SourceOffsets) -> dict[PartitionName, PartitionRange]:
    """The range of each partition. One that ends before it starts raises PipelineError."""
    ranges = {}
    for name in sorted(end.offsets):
        first, last = start.offsets.get(name, 0), end.offsets[name]
        if first > last:
            raise PipelineError(
                f"{name} would be read from offset {first} to {last}, backwards: correct the"
                " starting and ending offsets or times"
            )
        topic_id = end.topic_id(name.topic)
        ranges[name] = PartitionRange(name.topic, topic_id, name.partition, first, last)
    return ranges

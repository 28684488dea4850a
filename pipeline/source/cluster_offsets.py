"""Asks the cluster for offsets: of the options' bounds, the latest, those of a time.

All questions go through one KafkaCluster, which retries by itself. Called on the driver by the
readers; `open_cluster` also by tasks.
"""

import time
from collections.abc import Callable, Mapping

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.source.offset_bounds import (
    BoundAtOffsets,
    BoundAtTime,
    BoundAtTimes,
    OffsetBound,
)
from odradek.pipeline.source.offsets import SourceOffsets
from odradek.pipeline.source.options import SourceOptions
from odradek.pipeline.source.planning import size_of
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition
from odradek.pipeline.wire.security import wire_security

SAMPLE_OFFSETS = 200
SAMPLE_FETCH_BYTES = 64 * 1024


def open_cluster(options: SourceOptions) -> KafkaCluster:
    """A cluster as the options describe it; it connects when it is asked."""
    return KafkaCluster(
        options.bootstrap_servers,
        wire_security(options.kafka),
        client_id=options.kafka.get("client.id", "odradek-pipeline"),
        rack=options.kafka.get("client.rack", ""),
        timeout_s=options.timeout_s,
    )


class ClusterOffsets:
    """The offsets of what a query subscribes to."""

    def __init__(self, cluster: KafkaCluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options

    def latest(self, *, is_complete: bool) -> SourceOffsets:
        """The end of each partition, or the last stable offset with read_committed.

        With `is_complete` a topic or partition that is named and does not exist is an error.
        """
        return self._resolve(self._partitions(is_complete), lambda each: LATEST)

    def starting(self) -> SourceOffsets:
        """Where the options let reading start."""
        return self._at_bound(self._options.starting, "starting")

    def ending(self) -> SourceOffsets:
        """Where the options let a batch end."""
        return self._at_bound(self._options.ending, "ending")

    def log_starts(self, names: Mapping[PartitionName, int]) -> dict[PartitionName, int]:
        """The log start offsets of these partitions."""
        return self._list(dict.fromkeys(names, EARLIEST))

    def at_time(
        self, ranges: Mapping[PartitionName, PartitionRange], timestamp_ms: int
    ) -> dict[PartitionName, int]:
        """The offset of the first record of a time or later; the range's end if there is none."""
        found = self._list(dict.fromkeys(ranges, timestamp_ms))
        return {name: offset if offset >= 0 else ranges[name].end for name, offset in found.items()}

    def settled_latest(self, is_settled: Callable[[SourceOffsets], bool]) -> SourceOffsets:
        """The latest offsets, asked again a few times while they look as if records were lost.

        A broker that just started may not know all topics yet, and a leader that was just elected
        not how far its log is committed.
        """
        latest = self.latest(is_complete=False)
        for _ in range(self._options.offset_attempts - 1):
            if is_settled(latest):
                break
            time.sleep(self._options.offset_retry_ms / 1000)
            latest = self.latest(is_complete=False)
        return latest

    def log_ends(self, names: Mapping[PartitionName, int]) -> dict[PartitionName, int]:
        """The ends of these partitions, open transactions included."""
        found = self._cluster.list_offsets(dict.fromkeys(names, LATEST), read_committed=False)
        return {name: each.offset for name, each in found.items()}

    def bytes_per_offset(
        self, begins: Mapping[PartitionName, int], latest: SourceOffsets
    ) -> dict[PartitionName, float]:
        """An estimate from the next records of each partition: bytes of keys, values and headers.

        An offset without a record (control records, compaction) counts as none.
        """
        estimates = {}
        for name, begin in begins.items():
            end = min(latest.offsets[name], begin + SAMPLE_OFFSETS)
            if begin >= end:
                continue
            wanted = PartitionRange(name.topic, latest.topic_id(name.topic), *name[1:], begin, end)
            batches = read_partition(
                self._cluster,
                wanted,
                read_committed=self._options.is_read_committed,
                with_headers=self._options.include_headers,
                fetch_max_bytes=SAMPLE_FETCH_BYTES,
                batch_rows=SAMPLE_OFFSETS,
            )
            sampled = next(batches, None)
            if sampled is not None and sampled.num_rows:
                offsets = sampled.column("offset")[-1].as_py() + 1 - begin
                estimates[name] = max(1.0, size_of(sampled) / offsets)
        return estimates

    def _partitions(self, is_complete: bool) -> SourceOffsets:
        """All partitions of the subscription, with offset 0."""
        subscription = self._options.subscription
        views = self._cluster.topics(subscription.names)
        chosen = subscription.choose(views.values())
        names = {
            PartitionName(topic, partition)
            for topic, partitions in chosen.items()
            for partition in partitions
        }
        if is_complete:
            missing = sorted(set(subscription.names or ()) - set(chosen))
            missing += sorted(map(str, subscription.partitions - names)) if not missing else []
            if missing:
                raise PipelineError(
                    f"{', '.join(missing)} of {subscription} does not exist at"
                    f" {self._options.bootstrap_servers}: create it, or correct the option"
                )
        ids = {topic: views[topic].topic_id for topic in chosen}
        return SourceOffsets(dict.fromkeys(names, 0), ids)

    def _at_bound(self, bound: OffsetBound, side: str) -> SourceOffsets:
        partitions = self._partitions(is_complete=True)
        match bound:
            case BoundAtTime(timestamp_ms):
                return self._resolve(partitions, lambda each: timestamp_ms, side)
            case BoundAtTimes(times):
                self._check_partitions(f"{side}OffsetsByTimestamp", times, partitions)
                return self._resolve(partitions, times.__getitem__, side)
            case BoundAtOffsets(offsets):
                self._check_partitions(f"{side}Offsets", offsets, partitions)
                listed = {name: each for name, each in offsets.items() if each < 0}
                found = self._resolve(partitions, lambda each: listed.get(each, LATEST))
                named = {name: each for name, each in offsets.items() if each >= 0}
                return found.with_offsets(self._inside_log(f"{side}Offsets", named))

    def _resolve(
        self,
        partitions: SourceOffsets,
        time_of: Callable[[PartitionName], int],
        side: str = "",
    ) -> SourceOffsets:
        """ListOffsets for each partition. A time after all records stands for the end, if it may.

        At the side "starting" that is for the options to say.
        """
        times = {name: time_of(name) for name in partitions.offsets}
        found = self._list(times)
        late = {name: LATEST for name, offset in found.items() if offset < 0}
        if late and side == "starting" and not self._options.is_latest_without_match:
            name = min(late)
            raise PipelineError(
                f"{name} has no record at or after the starting time {times[name]} ms: choose an"
                " earlier one, or set startingOffsetsByTimestampStrategy=latest to start there at"
                " the end"
            )
        return partitions.with_offsets({**found, **self._list(late)})

    def _inside_log(
        self, option: str, offsets: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int]:
        """These offsets, checked against the log; moved into it if data may be lost."""
        starts = self.log_starts(offsets)
        # A batch cannot read what is not stable yet, a stream may wait for it.
        is_end = option.startswith("ending")
        ends = self._list(dict.fromkeys(offsets, LATEST)) if is_end else self.log_ends(offsets)
        inside = {}
        for name, offset in offsets.items():
            inside[name] = min(max(offset, starts[name]), ends[name])
            if inside[name] != offset and self._options.fail_on_data_loss:
                raise PipelineError(
                    f"{option} asks for offset {offset} of {name}, whose log has"
                    f" [{starts[name]}, {ends[name]}): correct it, or set failOnDataLoss=false to"
                    " read what is there"
                )
        return inside

    def _check_partitions(
        self, option: str, given: Mapping[PartitionName, int], partitions: SourceOffsets
    ) -> None:
        missing = sorted(set(partitions.offsets) - set(given))
        strange = sorted(set(given) - set(partitions.offsets))
        if missing or strange:
            faults = [f"{', '.join(map(str, missing))} is missing"] if missing else []
            faults += [f"{', '.join(map(str, strange))} is not read"] if strange else []
            raise PipelineError(
                f"{option} has to name exactly the partitions of {self._options.subscription}:"
                f" {' and '.join(faults)}; -1 stands for latest and -2 for earliest"
            )

    def _list(self, times: Mapping[PartitionName, int]) -> dict[PartitionName, int]:
        if not times:
            return {}
        found = self._cluster.list_offsets(times, read_committed=self._options.is_read_committed)
        return {name: each.offset for name, each in found.items()}

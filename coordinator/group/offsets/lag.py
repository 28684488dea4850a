"""The lag of a group: one definition for the metrics and for every command.

The lag in a partition is what there is to read from the group's position up to the high watermark,
in records, bytes and time (the age of the first of these records). The high watermark and not the
last stable offset, as Kafka's tools count: records of open transactions wait to be read, too.
Transaction markers are not records.

- The position is the committed offset. What a consumer has read and not committed is unread: the
  group would read it again.
- Where nothing is committed, the position is the log start offset: where the group would start with
  auto.offset.reset=earliest. No broker knows that setting of a consumer; with any other value the
  group has less to read. Whoever shows a lag says in how many partitions it was counted so.
- A share group counts from its share-partition start offset, without the records beyond that are
  done with. Where that is not set yet, share.auto.offset.reset says where it would start.
- A group has lag in each partition of the topics that it subscribes to or has offsets in.

Pure. Called by node/router/group_lag_metrics.py and node/cli/group_lag.py; the leader of a
partition counts (node/router/handlers/lag.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from odradek.coordinator.group.offsets.committed_offsets import PartitionKey
from odradek.protocol.types import NO_OFFSET

BEYOND_END: Final = 2**63 - 1
"""The position of a group that would start at the end of a log."""


class SharePosition(NamedTuple):
    """The position of a share group in a partition."""

    offset: int
    """The share-partition start offset. Where that is not set yet: where the group would start;
    NO_OFFSET stands for the log start."""
    done_count: int = -1
    """The records beyond that are done with; -1 if the group has not read here."""


def lag_positions(
    topics: Iterable[str],
    commits: Mapping[PartitionKey, int],
    partition_count: Callable[[str], int],
) -> Iterator[tuple[PartitionKey, int]]:
    """The partitions in which a group has lag, with its committed offsets, -1 where there is none.

    `topics` are those that it subscribes to. `partition_count` is 0 for a topic that does not
    exist: only committed offsets tell of its partitions, and there is no lag in them.
    """
    counts = {topic: partition_count(topic) for topic in topics}
    unknown: list[PartitionKey] = []
    for key in commits:
        topic, index = key
        if topic not in counts:
            counts[topic] = partition_count(topic)
        if index >= counts[topic]:
            unknown.append(key)
    for topic in sorted(counts):
        for index in range(counts[topic]):
            yield (topic, index), commits.get((topic, index), NO_OFFSET)
    for key in sorted(unknown):
        yield key, commits[key]


@dataclass(slots=True)
class LagSum:
    """The lag of several partitions: the sum of records and bytes, and the largest age.

    Not known while the lag of one of them is not known: no figure is better than one that is too
    low.
    """

    records: int = 0
    bytes: int = 0
    lag_ms: int = -1
    """-1 if no partition has a record with a timestamp, or any record."""
    uncommitted_count: int = 0
    """The partitions in which nothing is committed."""
    unknown_count: int = 0
    """The partitions whose lag is not known."""

    @property
    def is_known(self) -> bool:
        """Whether the lag of every partition is known."""
        return not self.unknown_count

    def add(self, records: int, byte_count: int, lag_ms: int, *, is_committed: bool) -> None:
        """Add a partition."""
        self.records += records
        self.bytes += byte_count
        self.lag_ms = max(self.lag_ms, lag_ms)
        self.uncommitted_count += not is_committed

    def add_unknown(self) -> None:
        """Add a partition whose lag is not known: it has no leader, or the leader is silent."""
        self.unknown_count += 1

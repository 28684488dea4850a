"""A cluster seen over the Kafka wire: its topics and the offsets of its partitions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.security import WireSecurity


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as Metadata lists it."""

    name: str
    topic_id: str
    """In base64url as Kafka's tools print it; empty if the cluster has none."""
    is_internal: bool
    partition_ids: tuple[int, ...]
    """In ascending order."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """What ListOffsets found; -1 and -1 if nothing is at or after the time."""

    offset: int
    timestamp_ms: int


class KafkaCluster:
    """Connections to a cluster, which are opened when they are needed. Not thread-safe."""

    def __init__(
        self,
        bootstrap_servers: str,
        security: WireSecurity = WireSecurity(),  # noqa: B008  # it is frozen
        *,
        client_id: str = "odradek-pipeline",
        rack: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        """Nothing is connected yet. `rack` is the reader's: Kafka may then name a follower there
        to read from (KIP-392). What fails for `timeout_s` in a row raises PipelineError."""
        raise NotImplementedError

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicView]:
        """The topics of these names, or all with None. Names that do not exist are left out."""
        raise NotImplementedError

    def list_offsets(
        self, wanted: Mapping[PartitionName, int], *, read_committed: bool
    ) -> dict[PartitionName, ListedOffset]:
        """For each partition the first offset at or after a timestamp in ms, or of EARLIEST or
        LATEST. With `read_committed` the latest is the last stable offset."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

"""A cluster seen over the Kafka wire: its topics, leaders and the offsets of its partitions.

Connections are opened when they are needed. What a moving leader or a restarting broker causes is
tried again, with newer metadata, until it failed for the whole timeout.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.missing_rights import missing_right
from odradek.pipeline.wire.backoff import Backoff
from odradek.pipeline.wire.connection import BrokerConnection, ConnectionLost
from odradek.pipeline.wire.errors import PASSING, BrokerError, error_name
from odradek.pipeline.wire.requests import (
    LIST_OFFSETS,
    METADATA,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BrokerAddress,
    MetadataAnswer,
    OffsetQuestion,
    OffsetReply,
    decode_list_offsets,
    decode_metadata,
    encode_list_offsets,
    encode_metadata,
)
from odradek.pipeline.wire.security import WireSecurity

DEFAULT_PORT: Final = 9092


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


class KnownLeader(NamedTuple):
    """Who leads a partition, and of which topic id it is."""

    node: int
    epoch: int
    topic_id: str


class KafkaCluster:
    """Connections to a cluster. Not thread-safe."""

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
        self.bootstrap_servers = bootstrap_servers
        self.rack = rack
        self.timeout_s = timeout_s
        self._security = security
        self._client_id = client_id
        self._bootstrap = _addresses(bootstrap_servers)
        self._brokers: dict[int, BrokerAddress] = {}
        self._leaders: dict[PartitionName, KnownLeader] = {}
        self._topic_errors: dict[str, int] = {}
        self._connections: dict[BrokerAddress, BrokerConnection] = {}

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicView]:
        """The topics of these names, or all with None. Names that do not exist are left out."""
        backoff = self.backoff()
        while True:
            answer = self._metadata(names, backoff)
            passing = [topic for topic in answer.topics if topic.error in _BEING_CREATED]
            if not passing:
                break
            backoff.pause(f"Topic {passing[0].name}: {error_name(passing[0].error)}")
        for topic in answer.topics:
            if topic.error not in _ABSENT and names is not None:
                self._refuse(f"topic {topic.name}", topic.error)
        return {
            topic.name: TopicView(
                topic.name,
                topic.topic_id,
                topic.is_internal,
                tuple(sorted(listed.partition for listed in topic.partitions)),
            )
            for topic in answer.topics
            if not topic.error
        }

    def list_offsets(
        self, wanted: Mapping[PartitionName, int], *, read_committed: bool
    ) -> dict[PartitionName, ListedOffset]:
        """For each partition the first offset at or after a timestamp in ms, or of EARLIEST or
        LATEST. With `read_committed` the latest is the last stable offset."""
        found: dict[PartitionName, ListedOffset] = {}
        missing = dict(wanted)
        isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        backoff = self.backoff()
        while missing:
            problem = "no leader"
            self.find_leaders(missing, backoff)
            for reply in self._ask_leaders(missing, isolation):
                name = PartitionName(reply.topic, reply.partition)
                if reply.error == BrokerError.NONE:
                    found[name] = ListedOffset(reply.offset, reply.timestamp_ms)
                    del missing[name]
                    backoff.succeeded()
                    continue
                self._refuse(str(name), reply.error)
                problem = error_name(reply.error)
                self.leader_moved(name)
            if missing:
                names = ", ".join(sorted(map(str, missing)))
                self._leaders = {k: v for k, v in self._leaders.items() if k not in missing}
                backoff.pause(f"No offsets of {names} from {self.bootstrap_servers}: {problem}")
        return found

    def backoff(self) -> Backoff:
        """The pauses of something that is tried until the timeout."""
        return Backoff(self.timeout_s)

    def find_leaders(self, names: Collection[PartitionName], backoff: Backoff) -> None:
        """Ask for the leaders that are not known. Some may still be missing afterwards. Raises
        PipelineError for a topic that may not be read."""
        topics = {name.topic for name in names if name not in self._leaders}
        if topics:
            for topic in self._metadata(topics, backoff).topics:
                self._refuse(f"topic {topic.name}", topic.error)

    def leader_of(self, name: PartitionName) -> KnownLeader | None:
        """The leader as it was last known."""
        return self._leaders.get(name)

    def leader_moved(self, name: PartitionName) -> None:
        """What is known of the leader is wrong."""
        self._leaders.pop(name, None)

    def is_unknown(self, topic: str) -> bool:
        """Whether the last answer about this topic was that there is none."""
        return self._topic_errors.get(topic) == BrokerError.UNKNOWN_TOPIC_OR_PARTITION

    def connection(self, node: int) -> BrokerConnection:
        """The connection to a broker. Raises ConnectionLost if there is none to be had."""
        address = self._brokers.get(node)
        if address is None:
            raise ConnectionLost(f"Broker {node} is not in the cluster's metadata.")
        return self._connect(address)

    def drop_connection(self, node: int) -> None:
        """A broker did not answer: the next `connection` is a new one."""
        address = self._brokers.get(node)
        if address is not None:
            self._drop(address)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask_leaders(
        self, wanted: Mapping[PartitionName, int], isolation: int
    ) -> Iterable[OffsetReply]:
        """Ask all leaders at once, then take their answers."""
        by_leader: dict[int, list[OffsetQuestion]] = {}
        for name, timestamp_ms in wanted.items():
            leader = self._leaders.get(name)
            if leader is not None:
                by_leader.setdefault(leader.node, []).append(
                    OffsetQuestion(*name, leader.epoch, timestamp_ms)
                )
        asked = []
        for node, questions in by_leader.items():
            try:
                connection = self.connection(node)
                version = connection.version_of(LIST_OFFSETS)
                body = encode_list_offsets(version, isolation, questions)
                asked.append(
                    (node, connection, version, connection.send(LIST_OFFSETS, version, body))
                )
            except ConnectionLost:
                self.drop_connection(node)
        replies: list[OffsetReply] = []
        for node, connection, version, correlation_id in asked:
            try:
                answer = connection.receive(
                    correlation_id, is_flexible=LIST_OFFSETS.is_flexible(version)
                )
                replies += decode_list_offsets(version, answer)
            except ConnectionLost:
                self.drop_connection(node)
        return replies

    def _metadata(self, names: Collection[str] | None, backoff: Backoff) -> MetadataAnswer:
        """Metadata from any broker; takes over what it says about brokers and leaders."""
        while True:
            problems: dict[str, None] = {}
            for address in dict.fromkeys(
                (*self._connections, *self._brokers.values(), *self._bootstrap)
            ):
                try:
                    version, body = self._connect(address).ask(
                        METADATA, lambda version: encode_metadata(version, names)
                    )
                except ConnectionLost as error:
                    self._drop(address)
                    problems[str(error)] = None
                    continue
                answer = decode_metadata(version, body)
                self._learn(answer)
                return answer
            backoff.pause(
                f"No broker of {self.bootstrap_servers} can be reached: {'; '.join(problems)}. "
                "Check the addresses, and security.protocol."
            )

    def _learn(self, answer: MetadataAnswer) -> None:
        self._brokers = dict(answer.brokers)
        for topic in answer.topics:
            self._topic_errors[topic.name] = topic.error
            for listed in topic.partitions:
                name = PartitionName(topic.name, listed.partition)
                if listed.leader in self._brokers:
                    self._leaders[name] = KnownLeader(
                        listed.leader, listed.leader_epoch, topic.topic_id
                    )
                else:
                    self._leaders.pop(name, None)

    def _connect(self, address: BrokerAddress) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_due_for_renewal:
            self._drop(address)
            connection = None
        if connection is None:
            connection = self._connections[address] = BrokerConnection(
                address, self._security, client_id=self._client_id, timeout_s=self.timeout_s
            )
        return connection

    def _drop(self, address: BrokerAddress) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _refuse(self, what: str, error: int) -> None:
        """Raise for an error that trying again does not help."""
        if error and error not in PASSING:
            needed = missing_right(error, topic=f"Read on {what}")
            raise PipelineError(
                f"The cluster {self.bootstrap_servers} refuses {what}: {error_name(error)}{needed}"
            )


_BEING_CREATED: Final = frozenset({BrokerError.LEADER_NOT_AVAILABLE})
_ABSENT: Final = frozenset(
    {BrokerError.NONE, BrokerError.UNKNOWN_TOPIC_OR_PARTITION, BrokerError.INVALID_TOPIC_EXCEPTION}
)


def _addresses(bootstrap_servers: str) -> tuple[BrokerAddress, ...]:
    """`host:port,[::1]:port,SSL://host:port`; Kafka's port if there is none."""
    found = []
    for part in bootstrap_servers.split(","):
        text = part.strip().rpartition("://")[2]
        host, colon, port = text.rpartition(":")
        if not colon or "]" in port:
            host, port = text, str(DEFAULT_PORT)
        if not text or not port.isdecimal():
            raise PipelineError(
                f"bootstrap.servers is {bootstrap_servers!r}. Set it to host:port,host:port."
            )
        found.append(BrokerAddress(host.strip("[]"), int(port)))
    return tuple(found)

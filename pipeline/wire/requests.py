"""The requests of a reader and their answers: Metadata, ListOffsets, Fetch, ApiVersions and SASL.

Each request is written in the version that the broker and this module both have. From Kafka 2.1 on
there is one for all of them. Fields that nothing here needs are read and dropped.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from odradek.pipeline.wire.primitives import (
    MessageReader,
    MessageWriter,
    topic_id_bytes,
    topic_id_text,
)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
_CONSUMER: Final = -1
"""The replica id of whoever is no replica."""
_NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class WireApi:
    """An API: its number, the versions that this module has, and the first flexible one."""

    name: str
    key: int
    oldest: int
    newest: int
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact types and tagged fields."""
        return version >= self.flexible_from


FETCH: Final = WireApi("Fetch", 1, 4, 16, 12)
LIST_OFFSETS: Final = WireApi("ListOffsets", 2, 2, 7, 6)
METADATA: Final = WireApi("Metadata", 3, 5, 12, 9)
SASL_HANDSHAKE: Final = WireApi("SaslHandshake", 17, 1, 1, 99)
API_VERSIONS: Final = WireApi("ApiVersions", 18, 0, 3, 3)
SASL_AUTHENTICATE: Final = WireApi("SaslAuthenticate", 36, 0, 2, 2)

FETCH_WITH_TOPIC_IDS: Final = 13
METADATA_WITH_TOPIC_IDS: Final = 10


class BrokerAddress(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """A partition in Metadata. The leader is -1 while there is none."""

    error: int
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic in Metadata, with an error or with its partitions."""

    error: int
    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[ListedPartition, ...]


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The cluster's brokers by node id, and the topics that were asked for."""

    brokers: Mapping[int, BrokerAddress]
    topics: tuple[ListedTopic, ...]


def encode_api_versions(version: int, client_version: str) -> bytes:
    """ApiVersions; KIP-511's name and version from version 3 on."""
    body = MessageWriter(is_flexible=API_VERSIONS.is_flexible(version))
    if version >= 3:
        body.string("odradek-pipeline")
        body.string(client_version)
    body.end_structure()
    return body.take()


def decode_api_versions(body: MessageReader) -> tuple[int, dict[int, tuple[int, int]]]:
    """An error code, and the oldest and newest version of each API by its number."""
    error = body.int16()
    versions = {}
    for _ in range(body.array()):
        key, oldest, newest = body.int16(), body.int16(), body.int16()
        body.end_structure()
        versions[key] = (oldest, newest)
    return error, versions


def encode_metadata(version: int, names: Collection[str] | None) -> bytes:
    """Metadata of these topics, or of all with None. No topic is created by asking for it."""
    body = MessageWriter(is_flexible=METADATA.is_flexible(version))
    body.array(None if names is None else len(names))
    for name in names or ():
        if version >= METADATA_WITH_TOPIC_IDS:
            body.raw(topic_id_bytes(""))
        body.string(name)
        body.end_structure()
    body.int8(0)  # allow_auto_topic_creation
    if 8 <= version <= 10:
        body.int8(0)  # include_cluster_authorized_operations
    if version >= 8:
        body.int8(0)  # include_topic_authorized_operations
    body.end_structure()
    return body.take()


def decode_metadata(version: int, body: MessageReader) -> MetadataAnswer:
    """Brokers and topics."""
    body.int32()  # throttle_time_ms
    brokers = {}
    for _ in range(body.array()):
        node, host, port = body.int32(), body.text(), body.int32()
        body.string()  # rack
        body.end_structure()
        brokers[node] = BrokerAddress(host, port)
    body.string()  # cluster_id
    body.int32()  # controller_id
    topics = tuple(_decode_topic(version, body) for _ in range(body.array()))
    if 8 <= version <= 10:
        body.int32()  # cluster_authorized_operations
    body.end_structure()
    return MetadataAnswer(brokers, topics)


def _decode_topic(version: int, body: MessageReader) -> ListedTopic:
    error, name = body.int16(), body.text()
    topic_id = topic_id_text(body.raw(16)) if version >= METADATA_WITH_TOPIC_IDS else ""
    is_internal = body.int8() != 0
    partitions = []
    for _ in range(body.array()):
        partition_error, partition, leader = body.int16(), body.int32(), body.int32()
        epoch = body.int32() if version >= 7 else _NO_EPOCH
        for _replicas in range(3):  # all, in sync, offline
            body.int32_array()
        body.end_structure()
        partitions.append(ListedPartition(partition_error, partition, leader, epoch))
    if version >= 8:
        body.int32()  # topic_authorized_operations
    body.end_structure()
    return ListedTopic(error, name, topic_id, is_internal, tuple(partitions))


class OffsetQuestion(NamedTuple):
    """What is asked about a partition: a timestamp in ms, or EARLIEST or LATEST."""

    topic: str
    partition: int
    leader_epoch: int
    timestamp_ms: int


class OffsetReply(NamedTuple):
    """An error code, or the offset and its record's timestamp; -1 and -1 if there is none."""

    topic: str
    partition: int
    error: int
    offset: int
    timestamp_ms: int


def encode_list_offsets(version: int, isolation: int, questions: Iterable[OffsetQuestion]) -> bytes:
    """ListOffsets, each partition once."""
    by_topic: dict[str, list[OffsetQuestion]] = {}
    for question in questions:
        by_topic.setdefault(question.topic, []).append(question)
    body = MessageWriter(is_flexible=LIST_OFFSETS.is_flexible(version))
    body.int32(_CONSUMER)
    body.int8(isolation)
    body.array(len(by_topic))
    for topic, partitions in by_topic.items():
        body.string(topic)
        body.array(len(partitions))
        for question in partitions:
            body.int32(question.partition)
            if version >= 4:
                body.int32(question.leader_epoch)
            body.int64(question.timestamp_ms)
            body.end_structure()
        body.end_structure()
    body.end_structure()
    return body.take()


def decode_list_offsets(version: int, body: MessageReader) -> list[OffsetReply]:
    """A reply for each partition."""
    body.int32()  # throttle_time_ms
    replies = []
    for _ in range(body.array()):
        topic = body.text()
        for _partition in range(body.array()):
            partition, error, timestamp_ms, offset = (
                body.int32(),
                body.int16(),
                body.int64(),
                body.int64(),
            )
            if version >= 4:
                body.int32()  # leader_epoch
            body.end_structure()
            replies.append(OffsetReply(topic, partition, error, offset, timestamp_ms))
        body.end_structure()
    body.end_structure()
    return replies


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchQuestion:
    """One partition to read from an offset on."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    isolation: int
    max_bytes: int
    max_wait_ms: int
    rack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """What a broker has of the partition. The records are the bytes [records_at, records_end) of
    `data`: whole batches, the first of which contains the offset."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer ids and first offsets of aborted transactions that overlap the records."""
    preferred_replica: int
    data: bytes
    records_at: int
    records_end: int


def encode_fetch(version: int, question: FetchQuestion) -> bytes:
    """Fetch of one partition without a session. `topic_id` must be known from version 13 on."""
    body = MessageWriter(is_flexible=FETCH.is_flexible(version))
    if version <= 14:
        body.int32(_CONSUMER)
    body.int32(question.max_wait_ms)
    body.int32(1)  # min_bytes
    body.int32(question.max_bytes)
    body.int8(question.isolation)
    if version >= 7:
        body.int32(0)  # session_id
        body.int32(_NO_EPOCH)  # session_epoch: none
    body.array(1)
    if version >= FETCH_WITH_TOPIC_IDS:
        body.raw(topic_id_bytes(question.topic_id))
    else:
        body.string(question.topic)
    body.array(1)
    body.int32(question.partition)
    if version >= 9:
        body.int32(question.leader_epoch)
    body.int64(question.offset)
    if version >= 12:
        body.int32(_NO_EPOCH)  # last_fetched_epoch
    if version >= 5:
        body.int64(-1)  # log_start_offset, of followers
    body.int32(question.max_bytes)
    body.end_structure()
    body.end_structure()
    if version >= 7:
        body.array(0)  # forgotten_topics_data
    if version >= 11:
        body.string(question.rack)
    body.end_structure()
    return body.take()


def decode_fetch(version: int, body: MessageReader) -> FetchAnswer:
    """The partition's part of the answer, or the error of the whole request."""
    body.int32()  # throttle_time_ms
    error = 0
    if version >= 7:
        error = body.int16()
        body.int32()  # session_id
    answer = FetchAnswer(
        error=error,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted=(),
        preferred_replica=-1,
        data=b"",
        records_at=0,
        records_end=0,
    )
    for _ in range(body.array()):
        if version >= FETCH_WITH_TOPIC_IDS:
            body.raw(16)
        else:
            body.string()
        for _partition in range(body.array()):
            answer = _decode_fetched(version, body, error)
        body.end_structure()
    body.end_structure()
    return answer


def _decode_fetched(version: int, body: MessageReader, error: int) -> FetchAnswer:
    body.int32()  # partition_index
    partition_error = body.int16()
    high_watermark, last_stable_offset = body.int64(), body.int64()
    log_start_offset = body.int64() if version >= 5 else -1
    aborted = []
    for _ in range(body.array()):
        aborted.append((body.int64(), body.int64()))
        body.end_structure()
    preferred_replica = body.int32() if version >= 11 else -1
    records_at, records_end = body.span() or (body.at, body.at)
    body.end_structure()
    return FetchAnswer(
        error=error or partition_error,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted=tuple(aborted),
        preferred_replica=preferred_replica,
        data=body.data,
        records_at=records_at,
        records_end=records_end,
    )


def encode_sasl_handshake(mechanism: str) -> bytes:
    """SaslHandshake; never flexible."""
    body = MessageWriter(is_flexible=False)
    body.string(mechanism)
    return body.take()


def decode_sasl_handshake(body: MessageReader) -> tuple[int, list[str]]:
    """An error code, and the mechanisms that the broker has."""
    error = body.int16()
    return error, [body.text() for _ in range(body.array())]


def encode_sasl_authenticate(version: int, data: bytes) -> bytes:
    """SaslAuthenticate with the client's next bytes."""
    body = MessageWriter(is_flexible=SASL_AUTHENTICATE.is_flexible(version))
    body.binary(data)
    body.end_structure()
    return body.take()


class SaslAnswer(NamedTuple):
    """An error with its text, or the server's next bytes. The session ends after `lifetime_ms`
    (KIP-368), never with 0."""

    error: int
    message: str
    data: bytes
    lifetime_ms: int


def decode_sasl_authenticate(version: int, body: MessageReader) -> SaslAnswer:
    """The server's answer."""
    error, message, data = body.int16(), body.text(), body.binary()
    return SaslAnswer(error, message, data, body.int64() if version >= 1 else 0)

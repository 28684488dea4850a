"""The records of streams groups (KIP-1071) in `__consumer_offsets`, in Kafka's own formats.

A key begins with an int16 that tells its type and is never flexible; a value begins with version 0
and is. A null value removes the key.

    key 17   group            epoch INT32, hash of the topics INT64, tag 0: validated topology epoch
                              INT32, tag 1: what the assignor was told, ARRAY of key, value
    key 19   group, member    instance, rack NULLABLE_STRING, client id, client host STRING,
                              rebalance timeout, topology epoch INT32, process id STRING, endpoint
                              (nullable: host STRING, port UINT16), client tags ARRAY of key, value
    key 20   group            epoch of the target assignment INT32, tag 0: when INT64
    key 21   group, member    target: active, standby, warm-up tasks
    key 22   group, member    epoch, previous epoch INT32, state INT8, assigned active, standby,
                              warm-up tasks, and those three again that are still to be given up
    key 23   group            the topology: epoch INT32, subtopologies ARRAY

Tasks are an ARRAY of subtopology STRING and partitions ARRAY of INT32; active ones of key 22 carry
in tag 0 since which epoch the member has each. Type 18 was given up before any release had it and
decodes to None. Values are immutable, their mappings are never written to. Called by `records`.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.modern.records import (
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    ModernRecords,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.group.record_fields import (
    INT16,
    INT32,
    INT64,
    FieldReader,
    compact_int32s,
    compact_string,
    string,
    uvarint,
)

V = TypeVar("V")

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""Tasks by subtopology: the partitions. A subtopology without any is not there."""
TaskEpochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""Tasks by subtopology, each with the member's epoch when it was given to it."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and values, in the order of the keys."""

UNKNOWN_EPOCH: Final = -1
NOT_VALIDATED: Final = -1

_EPOCH_KEY: Final = 17
_MEMBER_KEY: Final = 19
_TARGET_EPOCH_KEY: Final = 20
_TARGET_KEY: Final = 21
_CURRENT_KEY: Final = 22
_TOPOLOGY_KEY: Final = 23
_STATES: Final = {
    1: MemberState.STABLE,
    2: MemberState.UNREVOKED,
    3: MemberState.UNRELEASED,
    127: MemberState.UNKNOWN,
}
"""How far a member is, with the numbers of the log."""
_STATE_NUMBERS: Final = {state: number for number, state in _STATES.items()}
_VERSION: Final = b"\x00\x00"
_NO_TAGS: Final = b"\x00"


class InternalTopic(msgspec.Struct, frozen=True, gc=False):
    """A topic that the topology needs; 0 partitions or replicas leave the number to the broker."""

    name: str
    partition_count: int = 0
    replication_factor: int = 0
    configs: Pairs = ()


class StoredCopartitionGroup(msgspec.Struct, frozen=True, gc=False):
    """Topics that need equally many partitions, as indexes into the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regexes: tuple[int, ...] = ()
    repartition_sources: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True, kw_only=True):
    """Processors that run together: a task of it has the same partition of all its sources."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regexes: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[StoredCopartitionGroup, ...] = ()

    def sources(self) -> list[str]:
        """The topics that its tasks read."""
        return [*self.source_topics, *(topic.name for topic in self.repartition_sources)]


class Topology(msgspec.Struct, frozen=True):
    """What the application consists of; subtopologies in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]


_NONE: Final[Mapping[str, frozenset[int]]] = {}
_NONE_WITH_EPOCHS: Final[Mapping[str, Mapping[int, int]]] = {}


class TasksTuple(NamedTuple):
    """A member's tasks by role."""

    active: Tasks = _NONE
    standby: Tasks = _NONE
    warmup: Tasks = _NONE


class TasksTupleWithEpochs(NamedTuple):
    """The tasks that a member has; the active ones with the epochs they were given in."""

    active: TaskEpochs = _NONE_WITH_EPOCHS
    standby: Tasks = _NONE
    warmup: Tasks = _NONE


NO_TASKS: Final = TasksTuple()
NO_TASKS_WITH_EPOCHS: Final = TasksTupleWithEpochs()


class StreamsGroupEpoch(GroupEpoch, frozen=True, gc=False):
    """A group epoch, with the epoch of the topology whose topics are all there, and the
    configuration that the assignor was given."""

    validated_topology_epoch: int = NOT_VALIDATED
    assignment_configs: Pairs = ()


class StreamsGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member, which is one thread of a process."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    client_tags: Pairs = ()


class StreamsCurrentAssignment(CurrentAssignment, frozen=True):
    """The tasks that a member may run, and those it still has to give up."""

    assigned: TasksTupleWithEpochs = NO_TASKS_WITH_EPOCHS
    pending_revocation: TasksTupleWithEpochs = NO_TASKS_WITH_EPOCHS


class StreamsEpochRecord(EpochRecord, frozen=True, gc=False):
    """See EpochRecord."""

    value: StreamsGroupEpoch | None


class StreamsMemberRecord(MemberRecord[StreamsGroupMember], frozen=True):
    """See MemberRecord."""


class StreamsTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class StreamsTargetRecord(TargetRecord[TasksTuple], frozen=True):
    """See TargetRecord."""


class StreamsCurrentRecord(CurrentRecord[StreamsCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class StreamsTopologyRecord(msgspec.Struct, frozen=True):
    """The group's topology."""

    group_id: str
    value: Topology | None


STREAMS_RECORDS: Final = ModernRecords(
    StreamsEpochRecord,
    StreamsTargetEpochRecord,
    StreamsMemberRecord,
    StreamsTargetRecord,
    StreamsCurrentRecord,
)

StreamsGroupRecord: TypeAlias = (
    StreamsEpochRecord
    | StreamsMemberRecord
    | StreamsTargetEpochRecord
    | StreamsTargetRecord
    | StreamsCurrentRecord
    | StreamsTopologyRecord
)


# -- writing --------------------------------------------------------------------------------------


def encode_streams_record(record: StreamsGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the log. ProtocolError if a text is too long for its place."""
    group_id = string(record.group_id)
    value: bytes | None
    match record:
        case StreamsEpochRecord():
            key = INT16.pack(_EPOCH_KEY) + group_id
            value = None if record.value is None else _encode_epoch(record.value)
        case StreamsMemberRecord():
            key = INT16.pack(_MEMBER_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_member(record.value)
        case StreamsTargetEpochRecord():
            key = INT16.pack(_TARGET_EPOCH_KEY) + group_id
            value = None if record.value is None else _encode_target_epoch(record.value)
        case StreamsTargetRecord():
            key = INT16.pack(_TARGET_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_target(record.value)
        case StreamsCurrentRecord():
            key = INT16.pack(_CURRENT_KEY) + group_id + string(record.member_id)
            value = None if record.value is None else _encode_current(record.value)
        case StreamsTopologyRecord():
            key = INT16.pack(_TOPOLOGY_KEY) + group_id
            value = None if record.value is None else _encode_topology(record.value)
    return key, value


def _tags(fields: Mapping[int, bytes]) -> bytes:
    """Tagged fields, whose numbers come in order."""
    parts = [uvarint(len(fields))]
    for number, octets in fields.items():
        parts += (uvarint(number), uvarint(len(octets)), octets)
    return b"".join(parts)


def _array(elements: Iterable[bytes]) -> bytes:
    found = tuple(elements)
    return uvarint(len(found) + 1) + b"".join(found)


def _strings(texts: Iterable[str]) -> bytes:
    return _array(compact_string(text) for text in texts)


def _int16s(numbers: tuple[int, ...]) -> bytes:
    return uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}h", *numbers)


def _pairs(pairs: Pairs) -> bytes:
    return _array(compact_string(key) + compact_string(value) + _NO_TAGS for key, value in pairs)


def _tasks(tasks: Tasks) -> bytes:
    return _array(
        compact_string(subtopology_id) + compact_int32s(sorted(indexes)) + _NO_TAGS
        for subtopology_id, indexes in tasks.items()
    )


def _task_epochs(tasks: TaskEpochs) -> bytes:
    parts = []
    for subtopology_id, epochs in tasks.items():
        in_order = sorted(epochs)
        since = compact_int32s([epochs[index] for index in in_order])
        parts.append(compact_string(subtopology_id) + compact_int32s(in_order) + _tags({0: since}))
    return _array(parts)


def _encode_epoch(epoch: StreamsGroupEpoch) -> bytes:
    tags: dict[int, bytes] = {}
    if epoch.validated_topology_epoch != NOT_VALIDATED:
        tags[0] = INT32.pack(epoch.validated_topology_epoch)
    if epoch.assignment_configs:
        tags[1] = _pairs(epoch.assignment_configs)
    return _VERSION + struct.pack(">iq", epoch.epoch, epoch.metadata_hash) + _tags(tags)


def _encode_target_epoch(epoch: TargetEpoch) -> bytes:
    tags = {0: INT64.pack(epoch.assigned_at_ms)} if epoch.assigned_at_ms else {}
    return _VERSION + INT32.pack(epoch.epoch) + _tags(tags)


def _encode_member(member: StreamsGroupMember) -> bytes:
    # A nullable structure is led by a byte that says whether it is there.
    endpoint = b"\xff"
    if member.endpoint is not None:
        host, port = member.endpoint
        endpoint = b"\x01" + compact_string(host) + struct.pack(">H", port) + _NO_TAGS
    return b"".join(
        (
            _VERSION,
            compact_string(member.instance_id),
            compact_string(member.rack_id),
            compact_string(member.client_id),
            compact_string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.topology_epoch),
            compact_string(member.process_id),
            endpoint,
            _pairs(member.client_tags),
            _NO_TAGS,
        )
    )


def _encode_target(target: TasksTuple) -> bytes:
    return b"".join((_VERSION, *(_tasks(tasks) for tasks in target), _NO_TAGS))


def _encode_held(held: TasksTupleWithEpochs) -> bytes:
    return _task_epochs(held.active) + _tasks(held.standby) + _tasks(held.warmup)


def _encode_current(current: StreamsCurrentAssignment) -> bytes:
    head = struct.pack(
        ">iib", current.member_epoch, current.previous_member_epoch, _STATE_NUMBERS[current.state]
    )
    held = _encode_held(current.assigned) + _encode_held(current.pending_revocation)
    return _VERSION + head + held + _NO_TAGS


def _internal_topics(topics: tuple[InternalTopic, ...]) -> bytes:
    return _array(
        compact_string(topic.name)
        + struct.pack(">ih", topic.partition_count, topic.replication_factor)
        + _pairs(topic.configs)
        + _NO_TAGS
        for topic in topics
    )


def _encode_topology(topology: Topology) -> bytes:
    subtopologies = _array(
        b"".join(
            (
                compact_string(part.subtopology_id),
                _strings(part.source_topics),
                _strings(part.source_topic_regexes),
                _internal_topics(part.changelogs),
                _strings(part.repartition_sinks),
                _internal_topics(part.repartition_sources),
                _array(
                    _int16s(group.source_topics)
                    + _int16s(group.source_topic_regexes)
                    + _int16s(group.repartition_sources)
                    + _NO_TAGS
                    for group in part.copartition_groups
                ),
                _NO_TAGS,
            )
        )
        for part in topology.subtopologies
    )
    return _VERSION + INT32.pack(topology.epoch) + subtopologies + _NO_TAGS


# -- reading --------------------------------------------------------------------------------------


def decode_streams_record(
    kind: int, key: FieldReader, value: bytes | None
) -> StreamsGroupRecord | None:
    """The inverse; `key` stands behind the type. None for types that are not told of here.

    Bytes that end too early raise struct.error or IndexError, which `records` makes ProtocolErrors.
    """
    reader = None if value is None else FieldReader(value)
    if reader is not None and kind in STREAMS_RECORD_KINDS:
        reader.version(0, STREAMS_RECORD_KINDS[kind])
        reader.is_flexible = True
    match kind:
        case 17:
            return StreamsEpochRecord(key.string(), _read(reader, _decode_epoch))
        case 19:
            return StreamsMemberRecord(key.string(), key.string(), _read(reader, _decode_member))
        case 20:
            return StreamsTargetEpochRecord(key.string(), _read(reader, _decode_target_epoch))
        case 21:
            return StreamsTargetRecord(key.string(), key.string(), _read(reader, _decode_target))
        case 22:
            return StreamsCurrentRecord(key.string(), key.string(), _read(reader, _decode_current))
        case 23:
            return StreamsTopologyRecord(key.string(), _read(reader, _decode_topology))
    return None


def _read(reader: FieldReader | None, decode: Callable[[FieldReader], V]) -> V | None:
    return None if reader is None else decode(reader)


STREAMS_RECORD_KINDS: Final[Mapping[int, str]] = {
    _EPOCH_KEY: "StreamsGroupMetadataValue",
    _MEMBER_KEY: "StreamsGroupMemberMetadataValue",
    _TARGET_EPOCH_KEY: "StreamsGroupTargetAssignmentMetadataValue",
    _TARGET_KEY: "StreamsGroupTargetAssignmentMemberValue",
    _CURRENT_KEY: "StreamsGroupCurrentMemberAssignmentValue",
    _TOPOLOGY_KEY: "StreamsGroupTopologyValue",
}


def _array_of(reader: FieldReader, decode: Callable[[FieldReader], V]) -> tuple[V, ...]:
    return tuple(decode(reader) for _ in range(reader.array_length()))


def _flexible(octets: bytes) -> FieldReader:
    reader = FieldReader(octets)
    reader.is_flexible = True
    return reader


def _decode_pair(reader: FieldReader) -> tuple[str, str]:
    pair = (reader.string(), reader.string())
    reader.tags()
    return pair


def _decode_epoch(reader: FieldReader) -> StreamsGroupEpoch:
    epoch, metadata_hash = reader.int32(), reader.int64()
    tags = reader.tags()
    validated, configs = tags.get(0), tags.get(1)
    return StreamsGroupEpoch(
        epoch,
        metadata_hash,
        NOT_VALIDATED if validated is None else FieldReader(validated).int32(),
        () if configs is None else _array_of(_flexible(configs), _decode_pair),
    )


def _decode_target_epoch(reader: FieldReader) -> TargetEpoch:
    epoch = reader.int32()
    octets = reader.tags().get(0)
    return TargetEpoch(epoch, 0 if octets is None else FieldReader(octets).int64())


def _decode_endpoint(reader: FieldReader) -> tuple[str, int] | None:
    if reader.int8() < 0:
        return None
    endpoint = (reader.string(), reader.int16() & 0xFFFF)
    reader.tags()
    return endpoint


def _decode_member(reader: FieldReader) -> StreamsGroupMember:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms, topology_epoch = reader.int32(), reader.int32()
    process_id = reader.string()
    return StreamsGroupMember(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topology_epoch=topology_epoch,
        process_id=process_id,
        endpoint=_decode_endpoint(reader),
        client_tags=_array_of(reader, _decode_pair),
    )


def _decode_tasks(reader: FieldReader) -> Tasks:
    tasks: dict[str, frozenset[int]] = {}
    for _ in range(reader.array_length()):
        subtopology_id = reader.string()
        tasks[subtopology_id] = frozenset(reader.int32s())
        reader.tags()
    return tasks


def _decode_task_epochs(reader: FieldReader) -> TaskEpochs:
    tasks: dict[str, dict[int, int]] = {}
    for _ in range(reader.array_length()):
        subtopology_id = reader.string()
        indexes = reader.int32s()
        since: tuple[int, ...] = (UNKNOWN_EPOCH,) * len(indexes)
        octets = reader.tags().get(0)
        if octets is not None:
            since = _flexible(octets).int32s()
        tasks[subtopology_id] = dict(zip(indexes, since, strict=True))
    return tasks


def _decode_target(reader: FieldReader) -> TasksTuple:
    return TasksTuple(_decode_tasks(reader), _decode_tasks(reader), _decode_tasks(reader))


def _decode_held(reader: FieldReader) -> TasksTupleWithEpochs:
    return TasksTupleWithEpochs(
        _decode_task_epochs(reader), _decode_tasks(reader), _decode_tasks(reader)
    )


def _decode_current(reader: FieldReader) -> StreamsCurrentAssignment:
    member_epoch, previous_member_epoch = reader.int32(), reader.int32()
    state = _STATES.get(reader.int8(), MemberState.UNKNOWN)
    return StreamsCurrentAssignment(
        member_epoch,
        previous_member_epoch,
        state,
        _decode_held(reader),
        _decode_held(reader),
    )


def _decode_internal_topic(reader: FieldReader) -> InternalTopic:
    name, partition_count = reader.string(), reader.int32()
    replication_factor, configs = reader.int16(), _array_of(reader, _decode_pair)
    reader.tags()
    return InternalTopic(name, partition_count, replication_factor, configs)


def _decode_copartition_group(reader: FieldReader) -> StoredCopartitionGroup:
    group = StoredCopartitionGroup(
        _array_of(reader, FieldReader.int16),
        _array_of(reader, FieldReader.int16),
        _array_of(reader, FieldReader.int16),
    )
    reader.tags()
    return group


def _decode_subtopology(reader: FieldReader) -> Subtopology:
    subtopology = Subtopology(
        subtopology_id=reader.string(),
        source_topics=_array_of(reader, FieldReader.string),
        source_topic_regexes=_array_of(reader, FieldReader.string),
        changelogs=_array_of(reader, _decode_internal_topic),
        repartition_sinks=_array_of(reader, FieldReader.string),
        repartition_sources=_array_of(reader, _decode_internal_topic),
        copartition_groups=_array_of(reader, _decode_copartition_group),
    )
    reader.tags()
    return subtopology


def _decode_topology(reader: FieldReader) -> Topology:
    return Topology(reader.int32(), _array_of(reader, _decode_subtopology))

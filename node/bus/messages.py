"""The messages between the processes of a node: versioned msgspec structs.

A frame is a msgpack array of these structs, so that all requests of a turn are one frame. Between
routers and workers all messages except greetings are sent through rings in shared memory (ring.py).
Fields are added only at the end, with a default: an older reader skips them, a newer one takes the
default. The connecting side sends a greeting after every (re)connection. The greeting has an
incarnation, a new number for each start of the process, so that each side notices when the other
has restarted.
"""

from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from odradek.protocol.errors import ErrorCode
from odradek.storage.producer_state import ActiveProducer

R = TypeVar("R")

BUS_VERSION = 3
UNSENT: Final = 0
"""The id of a request before WorkerClient sends it."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The layout of all bus messages: a msgpack array whose first element is the tag."""


class WorkerRequest(msgspec.Struct, Generic[R], array_like=True, gc=False):
    """A request to a worker about one partition. The reply is an R.

    `number` is the store-local partition number. WorkerClient sets the id.
    """

    request_id: int
    store: int
    number: int


# -- worker <-> router -----------------------------------------------------------------------------


class WorkerGreeting(_Message, frozen=True, array_like=True, tag=1, gc=False):
    """A worker (re)connected to a router. `wakeup_path` is its wakeup pipe."""

    worker: int
    incarnation: int
    wakeup_path: str
    bus_version: int = BUS_VERSION
    worker_count: int = 0
    """The number of workers of the node. If it has changed, all earlier workers have ended. 0: not
    changed."""


class WorkerLeaving(_Message, frozen=True, array_like=True, tag=16, gc=False):
    """The worker stops. It replies to the requests that it has received. Send it no more."""


class RouterGreeting(_Message, frozen=True, array_like=True, tag=2, gc=False):
    """The router's reply: its wakeup pipe, its arena, and this worker's two rings in the arena."""

    wakeup_path: str
    arena_path: str
    requests_ring_offset: int
    replies_ring_offset: int
    ring_bytes: int
    incarnation: int
    bus_version: int = BUS_VERSION


class Append(WorkerRequest["AppendReply"], array_like=True, tag=3, gc=False):
    """Append the record batches at `[arena_offset, arena_offset + length)` of the router's arena.

    `leader_epoch` is the epoch that the router knows, -1 for any. `acks` as in Produce. `version`
    is the Produce version; batches that it does not allow are rejected. With acks=-1 the reply
    waits for the in-sync replicas, for `timeout_ms` at most. With `has_headroom` only the worker
    writes to the sixteen bytes before the batches, and it restores them. `is_client` is false for
    records of our coordinators. A coordinator's batch fails with OFFSET_OUT_OF_RANGE unless the log
    ends at `base_offset` (-1: any end), because it depends on the batch before.
    """

    arena_offset: int
    length: int
    leader_epoch: int = -1
    acks: int = -1
    version: int = 13
    has_headroom: bool = False
    is_client: bool = True
    timeout_ms: int = 30_000
    base_offset: int = -1


class AppendBytes(WorkerRequest["AppendReply"], array_like=True, tag=4, gc=False):
    """Append the batches in the message: a coordinator's records, converted old message sets, or a
    batch of a connection that a worker serves. `base_offset` as in Append. Those that must continue
    a transaction are refused with INVALID_TXN_STATE unless the partition has one of their producer
    in the same epoch."""

    batches: bytes
    """Or a view of bytes, in the process that made the message."""
    is_client: bool = False
    leader_epoch: int = -1
    acks: int = -1
    version: int = 13
    timeout_ms: int = 30_000
    base_offset: int = -1
    must_continue_transaction: bool = False


class DeleteRecords(WorkerRequest["DeleteRecordsReply"], array_like=True, tag=5, gc=False):
    """Move a partition's log start to `offset` (-1: to the high watermark). The reply waits for the
    live replicas, for `timeout_ms` at most."""

    offset: int
    timeout_ms: int = 30_000


class Appended(_Message, frozen=True, array_like=True, tag=6, gc=False):
    """The reply to an append. `record_errors` are (index in the batch, message) pairs. `work_ns` is
    the worker's time for it, if clients have quotas of time."""

    request_id: int
    error_code: int = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    error_message: str | None = None
    work_ns: int = 0


class RecordsDeleted(_Message, frozen=True, array_like=True, tag=7, gc=False):
    """The reply to DeleteRecords. `work_ns` as in Appended."""

    request_id: int
    error_code: int
    low_watermark: int
    work_ns: int = 0


class PartitionsAdvanced(_Message, frozen=True, array_like=True, tag=8, gc=False):
    """Watched partitions of one store whose offsets have changed or that were deleted."""

    store: int
    numbers: tuple[int, ...]


class RequestFailed(_Message, frozen=True, array_like=True, tag=9, gc=False):
    """A request failed."""

    request_id: int
    error_code: int
    error_message: str | None = None


class DescribeProducers(WorkerRequest["DescribeProducersReply"], array_like=True, tag=10, gc=False):
    """Get the producers of a partition. NOT_LEADER_OR_FOLLOWER if another node leads it, unless
    `allow_follower`."""

    allow_follower: bool = False


class ProducersDescribed(_Message, frozen=True, array_like=True, tag=11, gc=False):
    """The active producers of a partition. `work_ns` as in Appended."""

    request_id: int
    error_code: int
    producers: tuple[ActiveProducer, ...] = ()
    work_ns: int = 0


class WriteMarker(WorkerRequest["AppendReply"], array_like=True, tag=12, gc=False):
    """End a producer's transaction in a partition. The reply is Appended, after the commit.

    With `transaction_version` 2 each transaction has its own epoch, so that a second marker of the
    same epoch is a duplicate. `expected_transaction` is a first offset and the newest timestamp:
    INVALID_TXN_STATE unless the producer's transaction has both.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    timeout_ms: int = 30_000
    acks: int = -1
    version: int = 13
    leader_epoch: int = -1
    expected_transaction: tuple[int, int] | None = None
    base_offset: int = -1


class MoveReplica(WorkerRequest["MoveReplicaReply"], array_like=True, tag=17, gc=False):
    """Move a replica to the log directory at this place of log.dirs. `store` is the index of its
    store, `number` means nothing."""

    topic_id: bytes
    partition: int
    directory: int


class ReplicaMoveBegun(_Message, frozen=True, array_like=True, tag=18, gc=False):
    """Whether the replica is being moved, or is there already."""

    request_id: int
    error_code: int


class SetArchivedOffsets(
    WorkerRequest["SetArchivedOffsetsReply"], array_like=True, tag=32, gc=False
):
    """What the group of `odradek.archive.group` has committed: (topic id, partition, offset), -1 if
    nothing. The partitions are those of one store, of the first log directory; `number` means
    nothing."""

    group: str
    offsets: tuple[tuple[bytes, int, int], ...]


class ArchivedOffsetsSet(_Message, frozen=True, array_like=True, tag=33, gc=False):
    """How many bytes retention would have deleted at its last check and keeps for the group, of
    each partition in the order of the request."""

    request_id: int
    held_bytes: tuple[int, ...]


class TraceRequest(_Message, frozen=True, array_like=True, tag=19, gc=False):
    """The request with this id, which follows, is traced: RequestTraced comes before its reply."""

    request_id: int


class TracedSpan(_Message, frozen=True, array_like=True, gc=False):
    """One stage of a request in another process: `[start_ns, end_ns)` of the machine's monotonic
    clock."""

    name: str
    start_ns: int
    end_ns: int
    attributes: tuple[tuple[str, str], ...] = ()


class RequestTraced(_Message, frozen=True, array_like=True, tag=31, gc=False):
    """What the worker did for a traced request. It comes just before the reply."""

    request_id: int
    spans: tuple[TracedSpan, ...]


AppendReply: TypeAlias = Appended | RequestFailed
"""Of appends and transaction markers."""
DeleteRecordsReply: TypeAlias = RecordsDeleted | RequestFailed
DescribeProducersReply: TypeAlias = ProducersDescribed | RequestFailed
MoveReplicaReply: TypeAlias = ReplicaMoveBegun | RequestFailed
SetArchivedOffsetsReply: TypeAlias = ArchivedOffsetsSet | RequestFailed


class RelayRequest(_Message, frozen=True, array_like=True, tag=13, gc=False):
    """A request that this worker received from another node's router. `identity` is the address of
    the response."""

    identity: bytes
    payload: bytes


class RelayResponse(_Message, frozen=True, array_like=True, tag=14, gc=False):
    """The router's response to RelayRequest."""

    identity: bytes
    payload: bytes


ToWorker = (
    RouterGreeting
    | Append
    | AppendBytes
    | DeleteRecords
    | DescribeProducers
    | WriteMarker
    | MoveReplica
    | SetArchivedOffsets
    | RelayResponse
    | TraceRequest
)
ToRouter = (
    WorkerGreeting
    | WorkerLeaving
    | Appended
    | RecordsDeleted
    | PartitionsAdvanced
    | RequestFailed
    | ProducersDescribed
    | ReplicaMoveBegun
    | ArchivedOffsetsSet
    | RelayRequest
    | RequestTraced
)


# -- any process <-> controller --------------------------------------------------------------------


class SubscribeMetadata(_Message, frozen=True, array_like=True, tag=20, gc=False):
    """A process (re)connected to the controller and has applied metadata up to `offset`
    (exclusive)."""

    process: str
    incarnation: int
    offset: int
    cluster_id: str = ""
    bus_version: int = BUS_VERSION


class MetadataApplied(_Message, frozen=True, array_like=True, tag=21, gc=False):
    """The process has applied all metadata records below `offset`."""

    process: str
    offset: int


class SubmitCommand(_Message, frozen=True, array_like=True, tag=22, gc=False):
    """A command for the controller, encoded by cluster.controller.commands. The deadline is of
    CLOCK_MONOTONIC, which all processes of the machine share."""

    request_id: int
    command: bytes
    deadline_ms: int


class MetadataRecords(_Message, frozen=True, array_like=True, tag=23, gc=False):
    """Committed metadata records `[base_offset, base_offset + len(records))`."""

    base_offset: int
    records: tuple[bytes, ...]


class MetadataSnapshot(_Message, frozen=True, array_like=True, tag=24, gc=False):
    """The whole image below `offset`, as records. It replaces the image of the process."""

    offset: int
    records: tuple[bytes, ...]


class CommandSubmitted(_Message, frozen=True, array_like=True, tag=25, gc=False):
    """The reply to a command: it is committed, and visible in every process of this node.

    `reply` is the command's own reply, encoded by cluster.controller.commands, or empty if
    `error_code` is set. `stages` are those of the command in the controller.
    """

    request_id: int
    error_code: int
    reply: bytes
    error_message: str | None = None
    stages: tuple[TracedSpan, ...] = ()


class DescribeQuorum(_Message, frozen=True, array_like=True, tag=26, gc=False):
    """Get the state of the quorum."""

    request_id: int


class QuorumReplica(_Message, frozen=True, array_like=True, gc=False):
    """One member as the leader knows it. Times are of the leader's wall clock, -1 if unknown."""

    node_id: int
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    directory_id: bytes = bytes(16)
    """Of the data folder with its metadata log. Zero if unknown."""
    host: str = ""
    port: int = 0
    """Its peer address. Port 0 if unknown."""


class QuorumState(_Message, frozen=True, array_like=True, gc=False):
    """The quorum as its leader knows it. `high_watermark` is the number of committed entries."""

    leader_id: int
    term: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...] = ()


class QuorumDescribed(_Message, frozen=True, array_like=True, tag=27, gc=False):
    """The reply to DescribeQuorum. Null if no leader was found in time."""

    request_id: int
    state: QuorumState | None


class NodesUnreachable(_Message, frozen=True, array_like=True, tag=28, gc=False):
    """Nodes whose connection has just broken. Do not refer clients to them until the metadata says,
    within the session timeout, whether they are fenced."""

    node_ids: tuple[int, ...]


class LivenessCheck(_Message, frozen=True, array_like=True, tag=29, gc=False):
    """Sent regularly. A process that is not stuck replies."""


class LivenessReply(_Message, frozen=True, array_like=True, tag=30, gc=False):
    """The reply to LivenessCheck."""

    process: str


ToController = SubscribeMetadata | MetadataApplied | SubmitCommand | DescribeQuorum | LivenessReply
FromController = (
    MetadataRecords
    | MetadataSnapshot
    | CommandSubmitted
    | QuorumDescribed
    | NodesUnreachable
    | LivenessCheck
)

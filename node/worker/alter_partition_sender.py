"""Sends ISR changes to the controller: those that leaders propose (AlterPartition), and those of
replicas that leave because their disk is full (ResignReplicas). Sends the log directories of
replicas, too (AssignReplicasToDirs).

A proposal is answered, or ends with REQUEST_TIMED_OUT, also if it could not be sent. Its outcome is
unknown then, and the leader proposes again. A replica resigns once per RESIGN_MS as long as its
disk is full, and does not wait for an answer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from odradek.cluster.controller.commands import (
    AlterPartition,
    AssignReplicasToDirs,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    ResignReplicas,
    decode_reply,
    encode_command,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.replication.leader import IsrProposal
from odradek.node.bus.messages import CommandSubmitted, SubmitCommand
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid

TIMEOUT_MS = 2_000
RESIGN_MS = 1_000
ASSIGNED_MAX = 5_000
"""The most replicas of one command."""
TopicIdPartition = tuple[Uuid, int]
"""Topic id and number of a partition."""
ProposalResult = tuple[IsrProposal, ErrorCode]


class _Sent(NamedTuple):
    proposals: tuple[IsrProposal, ...]
    deadline_ms: int


class AlterPartitionSender:
    """The ISR changes of one worker. `submit(message)` sends a message to the controller if it
    is connected. Times are milliseconds of the monotonic clock."""

    def __init__(self, node_id: int, submit: Callable[[SubmitCommand], None]) -> None:
        self._node_id = node_id
        self._send_command = submit
        self._next_id = 0
        self._resign_ms = self._assign_ms = 0
        self._refused: dict[TopicIdPartition, None] = {}
        self._sent: dict[int, _Sent] = {}

    def send(self, proposals: Sequence[IsrProposal], image: MetadataImage, now_ms: int) -> None:
        """Send these proposals in one command."""
        changes = tuple(
            InSyncChange(
                proposal.topic_id,
                proposal.partition,
                proposal.leader_epoch,
                proposal.partition_epoch,
                tuple(InSyncReplica(*member) for member in proposal.in_sync),
            )
            for proposal in proposals
        )
        self._submit(AlterPartition(self._node_id, self._epoch(image), changes), now_ms)
        self._sent[self._next_id] = _Sent(tuple(proposals), now_ms + TIMEOUT_MS)

    def resign(
        self, refused: Iterable[TopicIdPartition], image: MetadataImage, now_ms: int
    ) -> None:
        """Remove these replicas of this node from their ISRs, and those that failed since the last
        command. Sends at most one command per RESIGN_MS."""
        self._refused.update(dict.fromkeys(refused))
        if not self._refused or now_ms < self._resign_ms:
            return
        self._resign_ms = now_ms + RESIGN_MS
        refused, self._refused = tuple(self._refused), {}
        self._submit(ResignReplicas(self._node_id, self._epoch(image), refused), now_ms)

    def assign(
        self, directories: Mapping[TopicIdPartition, Uuid], image: MetadataImage, now_ms: int
    ) -> None:
        """Tell in which log directories these replicas of this node are. Sends at most one command
        per RESIGN_MS, until the metadata says so."""
        if now_ms < self._assign_ms:
            return
        self._assign_ms = now_ms + RESIGN_MS
        replicas = tuple((*key, each) for key, each in islice(directories.items(), ASSIGNED_MAX))
        self._submit(AssignReplicasToDirs(self._node_id, self._epoch(image), replicas), now_ms)

    def _epoch(self, image: MetadataImage) -> int:
        broker = image.brokers.get(self._node_id)
        return broker.broker_epoch if broker is not None else -1

    def _submit(
        self, command: AlterPartition | ResignReplicas | AssignReplicasToDirs, now_ms: int
    ) -> None:
        self._next_id += 1
        self._send_command(
            SubmitCommand(self._next_id, encode_command(command), now_ms + TIMEOUT_MS)
        )

    def on_response(self, message: CommandSubmitted) -> Iterator[ProposalResult]:
        """The controller's result for each proposal."""
        sent = self._sent.pop(message.request_id, None)
        if sent is None:
            return
        if message.error_code:
            for proposal in sent.proposals:
                yield proposal, ErrorCode(message.error_code)
            return
        reply = decode_reply(message.reply)
        assert isinstance(reply, InSyncReply)
        for proposal, result in zip(sent.proposals, reply.results, strict=True):
            yield proposal, ErrorCode(result.error_code)

    def expired(self, now_ms: int) -> Iterator[ProposalResult]:
        """Proposals without an answer in time."""
        for request_id, sent in list(self._sent.items()):
            if sent.deadline_ms <= now_ms:
                del self._sent[request_id]
                for proposal in sent.proposals:
                    yield proposal, ErrorCode.REQUEST_TIMED_OUT

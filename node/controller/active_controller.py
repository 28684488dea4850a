"""The active controller: decides commands and appends their records to the metadata log.

    handle:  decode -> Controller.handle (pure) -> RaftDriver.propose -> Controller.replay

One instance lives from the commit of this member's first entry in its term until it loses
leadership. Each command is decided on the state after all earlier ones, committed or not; what is
not committed is lost with leadership. `committed` returns the image that was made when an entry was
decided, so that nothing is replayed twice. A change of the voters is an entry without records.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    AlterConfigs,
    BrokerHeartbeat,
    Command,
    DeleteTopics,
    IncrementalAlterConfigs,
    RemoveRaftVoter,
    VotersReply,
    decode_command,
    encode_reply,
)
from odradek.cluster.controller.controller import Controller
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import PartitionChanged, Record, encode_records
from odradek.cluster.raft.configuration import MembershipChange, ProposalRefusal, RemoveVoter
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Proposal
from odradek.node.bus.peer_messages import ForwardResponse
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.controller.voter_changes import PeerHeaderLookup, membership_change, refusal_error
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode

log = get_logger(__name__)

DISK_FULL = "The disk of the active controller is full."

_FREES_SPACE = (DeleteTopics, AlterConfigs, IncrementalAlterConfigs, BrokerHeartbeat)
"""May use the reserved disk space: deleting topics and shortening their retention frees space, and
fencing must work on a full disk."""


class NoDiskSpaceError(Exception):
    """The log has no space for the records."""


class NotProposedError(Exception):
    """The quorum accepts nothing at the moment; submit the command again."""


class ActiveController:
    """See the module's docstring."""

    def __init__(
        self,
        driver: RaftDriver,
        image: MetadataImage,
        *,
        term: int,
        node_id: int,
        static: Mapping[str, str],
        has_space: Callable[[int], bool],
        headers: PeerHeaderLookup,
    ) -> None:
        """`has_space(bytes)` says whether the log has that much space beyond its reserve."""
        self.term = term
        self.controller = Controller(image, node_id=node_id, static=static)
        self._node_id = node_id
        self._driver = driver
        self._has_space = has_space
        self._headers = headers
        self._uncommitted: deque[tuple[int, MetadataImage]] = deque()

    @property
    def index(self) -> int:
        """The last entry of the log: decided here, or older."""
        return self.controller.image.offset

    def handle(self, data: bytes, now_ms: int) -> tuple[ForwardResponse, int]:
        """Decide an encoded command: the response, and the entry that must be committed before it
        is sent. A refusal waits too: it may rest on entries that are not committed yet.

        Raises NotProposedError; then nothing has happened.
        """
        try:
            command = decode_command(data)
        except ValueError as error:
            text = f"Node {self._node_id} does not support this command: {error}"
            return ForwardResponse(0, ErrorCode.UNSUPPORTED_VERSION, error_message=text), 0
        try:
            reply, index = self.decide(command, now_ms)
        except ApiError as error:
            return ForwardResponse(0, error.code, error_message=error.message), self.index
        except NoDiskSpaceError:
            return ForwardResponse(0, ErrorCode.KAFKA_STORAGE_ERROR, error_message=DISK_FULL), 0
        return ForwardResponse(0, ErrorCode.NONE, reply, offset=index), index

    def decide(self, command: Command, now_ms: int) -> tuple[bytes, int]:
        """Decide a command and propose its records: the reply, and the entry that must be committed
        before it is sent; 0: it may be sent at once.

        Raises ApiError if it is refused, NoDiskSpaceError and NotProposedError; then nothing has
        happened.
        """
        if isinstance(command, AddRaftVoter | RemoveRaftVoter):
            return self._change_voters(command)
        result = self.controller.handle(command, now_ms)
        self.propose(result.records, frees_space=isinstance(command, _FREES_SPACE))
        return encode_reply(result.reply), self.index

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Propose what is due: fencing, preferred leader elections, the end of tokens. `wall_ms` is
        the time since the epoch."""
        due = self.controller.next_deadline_ms()
        if due is not None and now_ms >= due:
            before = self.controller.image
            records = self.controller.tick(now_ms, wall_ms)
            self.propose(records, frees_space=True)
            _log_added_replicas(before, records)

    def propose(self, records: Sequence[Record], *, frees_space: bool) -> None:
        """Append records to the log as one entry and replay them. Raises as `decide`."""
        if not records:
            return
        data = encode_records(records)
        if not frees_space and not self._has_space(len(data)):
            raise NoDiskSpaceError
        proposal = self._driver.propose(data)
        if isinstance(proposal, ProposalRefusal):
            raise NotProposedError(f"The quorum accepts no entries: {proposal}")
        self._replay(proposal, records)

    def change_membership(self, change: MembershipChange) -> ProposalRefusal | None:
        """Append the next configuration to the log, or say why not."""
        proposal = self._driver.change_membership(change)
        if isinstance(proposal, ProposalRefusal):
            return proposal
        self._replay(proposal, ())
        return None

    def _change_voters(self, command: AddRaftVoter | RemoveRaftVoter) -> tuple[bytes, int]:
        change = membership_change(command, self._driver.node.configuration, self._headers)
        if self._must_transfer_leadership(change):
            raise NotProposedError("The leader transfers leadership before it loses its vote.")
        refusal = self.change_membership(change)
        if refusal is not None:
            reason = refusal_error(refusal, command)
            if isinstance(reason, ApiError):
                raise reason
            raise NotProposedError(reason)
        is_waiting = isinstance(command, RemoveRaftVoter) or command.waits
        return encode_reply(VotersReply(command.voter_id)), self.index if is_waiting else 0

    def _must_transfer_leadership(self, change: MembershipChange) -> bool:
        """Whether the leader itself is to be removed and there is another voter. Begins the
        transfer: the new leader removes this voter, and no election timeout has to pass."""
        node = self._driver.node
        if not isinstance(change, RemoveVoter) or change.member_id != node.own_id:
            return False
        others = [voter for voter in node.configuration.voter_ids if voter != node.own_id]
        leadership = node.leadership
        if leadership is not None and leadership.transferee is None:
            self._driver.transfer_leadership(others)
        return bool(others)

    def _replay(self, proposal: Proposal, records: Sequence[Record]) -> None:
        # Records contain the index of their own entry, for example as broker epoch.
        assert proposal.index == self.index + 1, "another entry was appended in between"
        self.controller.replay(records, proposal.index)
        self._uncommitted.append((proposal.index, self.controller.image))

    def committed(self, entry: Entry) -> MetadataImage | None:
        """The image after an entry that was decided here; None if it was not."""
        uncommitted = self._uncommitted
        if not uncommitted or uncommitted[0][0] != entry.index or entry.term != self.term:
            return None
        return uncommitted.popleft()[1]


def _log_added_replicas(before: MetadataImage, records: Sequence[Record]) -> None:
    """Log that internal topics get replicas that nobody has asked for."""
    added: Counter[str] = Counter()
    for record in records:
        if isinstance(record, PartitionChanged):
            partition = before.partition(record.topic_id, record.partition)
            if partition is not None and len(record.state.replicas) > len(partition.replicas):
                added[before.topics_by_id[record.topic_id].name] += 1
    for name, count in added.items():
        log.info(
            "partitions get more replicas, because brokers have joined", topic=name, count=count
        )

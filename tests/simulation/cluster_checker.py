"""Invariants of a cluster after every event, beyond those of its quorum (`raft_checker`).

The checker sees the disks of all nodes and all responses to clients. For each partition it keeps a
history: every batch that was once below a leader's high watermark, in order. Everything that is
committed, read, led or truncated later is checked against it.
"""

from collections.abc import Mapping, Sequence

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.offsets.records import OffsetCommitRecord
from odradek.coordinator.group.records import decode
from odradek.coordinator.loader import TransactionalEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.share.acquisition import AcquiredRange
from odradek.node.router.shards.shard_log import decode_entries
from odradek.node.router.share.partitions import HostedSharePartition
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import BatchHeader, read_header
from tests.simulation.broker import GROUP_TOPIC, Fetched, SimulatedWorker
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.ownership import Ownership, Stored
from tests.simulation.share_checker import ShareChecker
from tests.simulation.share_host import SHARE_TOPIC, Acknowledgement
from tests.simulation.simulation import Simulation, Violation
from tests.simulation.store import DiskLog, Identity, SimulatedBatch

_Place = tuple[int, Identity]


class History:
    """The committed batches of one partition."""

    def __init__(self) -> None:
        self.batches: list[SimulatedBatch] = []
        self.at: dict[int, SimulatedBatch] = {}

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0


class ClusterChecker:
    """See the module's docstring. It changes nothing."""

    def __init__(self, simulation: Simulation, nodes: Mapping[int, ClusterNode]) -> None:
        self.image = MetadataImage.empty()
        """The newest committed image."""
        self.histories: dict[Identity, History] = {}
        self.acknowledged_count = 0
        self.read_count = 0
        self.cut_count = 0
        self.lost_count = 0
        self.epoch_count = 0
        self.owner_count = 0
        self.commit_count = 0
        self.ownership = Ownership()
        self.min_insync_replicas = 2
        self.shares = ShareChecker()
        self._simulation = simulation
        self._nodes = nodes
        self._facts: dict[tuple[Identity, int, int], tuple[int, int, int]] = {}
        self._lost: dict[tuple[Identity, int, int], set[int]] = {}
        """Replicas that lost a batch by a power loss or a reassignment."""
        self._writers: dict[tuple[Identity, int], int] = {}
        self._verified: dict[_Place, int] = {}
        """By replica: how many batches of the history its log was seen to have."""
        self._followed: dict[int, MetadataImage] = {}
        self._workers: dict[int, SimulatedWorker] = {}
        self._reigns: dict[_Place, int] = {}
        self._owners: dict[tuple[str, int, int], str] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._attempts: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], int] = {}
        """The greatest offset in the committed part of the log."""
        self._assigned: set[tuple[str, int, str, bytes]] = set()
        self._asked: dict[tuple[int, int], tuple[int, int, int]] = {}

    # -- logs --------------------------------------------------------------------------------------

    def appended(self, node_id: int, log: DiskLog, batch: SimulatedBatch, *, leads: bool) -> None:
        """Log matching, by induction from each batch to the one before it; one writer in each
        epoch."""
        identity, epoch = log.identity, batch.leader_epoch
        before = log.batches[-2] if len(log.batches) > 1 else None
        key = (identity, batch.base_offset, epoch)
        fact = (
            (batch.crc, -1, 0) if before is None else (batch.crc, before.leader_epoch, before.crc)
        )
        known = self._facts.setdefault(key, fact)
        if known != fact:
            raise Violation(
                f"two logs of {_name(log)} differ at or before {batch.base_offset} of epoch {epoch}"
            )
        if before is not None and before.leader_epoch > epoch:
            raise Violation(f"{node_id} has epoch {epoch} of {_name(log)} after a later one")
        if leads:
            writer = self._writers.setdefault((identity, epoch), node_id)
            if writer != node_id:
                raise Violation(
                    f"{node_id} and {writer} both write to {_name(log)} in epoch {epoch}"
                )
            if any(b.crc == batch.crc for b in log.batches[-60:-1]):
                header: BatchHeader = read_header(memoryview(batch.data))
                if header.producer_id >= 0 and header.base_sequence >= 0:
                    raise Violation(
                        f"sequence {header.base_sequence} of producer {header.producer_id} is twice"
                        f" in {_name(log)}"
                    )

    def cut(self, node_id: int, log: DiskLog, end_offset: int) -> None:
        """No log truncates a committed batch that it has."""
        self.cut_count += 1
        self._simulation.note(f"{node_id} cuts {_name(log)} to {end_offset}")
        place = node_id, log.identity
        history = self._history(log.identity)
        verified = self._verified.get(place, 0)
        if verified and history.batches[verified - 1].end_offset > end_offset:
            raise Violation(
                f"{node_id} cuts {_name(log)} to {end_offset} and had what was committed up to"
                f" {history.batches[verified - 1].end_offset}"
            )
        self._verified[place] = 0

    def deleted(self, node_id: int, log: DiskLog) -> None:
        """The replica was deleted, as far as the node knows."""
        self._verified.pop((node_id, log.identity), None)
        self._had(node_id, log.identity, log.batches)

    def committed(self, node_id: int, log: DiskLog, high_watermark: int) -> None:
        """Below the high watermark all logs are equal, and the high watermark covers only what
        it may."""
        place = node_id, log.identity
        history = self._history(log.identity)
        verified = self._verified.get(place, 0)
        batches = history.batches
        if verified and verified == len(batches) and batches[-1].end_offset >= high_watermark:
            return
        start = batches[verified - 1].end_offset if verified else log.log_start_offset
        if start >= high_watermark:
            return
        for batch in log.batches[log.index_of(start) :]:
            if batch.end_offset > high_watermark:
                break
            if verified < len(batches):
                known = batches[verified]
                if (known.base_offset, known.leader_epoch, known.crc) != (
                    batch.base_offset,
                    batch.leader_epoch,
                    batch.crc,
                ):
                    raise Violation(
                        f"{node_id} commits another batch at {batch.base_offset} of {_name(log)}"
                    )
            else:
                self._commit(node_id, log, batch)
                batches.append(batch)
                history.at[batch.base_offset] = batch
                if log.topic_name == GROUP_TOPIC:
                    self._store(batch)
                elif log.topic_name == SHARE_TOPIC:
                    self.shares.stored(_plain_entries_of(batch))
            verified += 1
        self._verified[place] = verified

    def _store(self, batch: SimulatedBatch) -> None:
        """Replay the records of the group topic that are committed."""
        for key, value in _plain_entries_of(batch):
            record = None if key is None else decode(key, value)
            if isinstance(record, OffsetCommitRecord) and record.committed is not None:
                stored = record.group_id, record.partition
                self._stored[stored] = max(record.committed.offset, self._stored.get(stored, -1))
            elif isinstance(record, GroupMetadataRecord) and record.metadata is not None:
                for member in record.metadata.members:
                    generation = record.group_id, record.metadata.generation_id
                    self._assigned.add((*generation, member.member_id, member.assignment))
            elif isinstance(record, Stored):
                self.ownership.stored(record)

    def _commit(self, node_id: int, log: DiskLog, batch: SimulatedBatch) -> None:
        """A batch is committed for the first time."""
        identity = log.identity
        holders = {i for i in self._nodes if _has(self._logs(i).get(identity), batch)}
        # A replica that has lost it later has acknowledged it before.
        holders |= self._lost.get((identity, batch.base_offset, batch.leader_epoch), set())
        name, end = _name(log), batch.end_offset
        worker = self._nodes[node_id].worker
        state = worker.image.partition(*identity)
        if state is None or state.leader != node_id:
            raise Violation(f"{node_id} calls {end} of {name} committed and does not lead it")
        wanted = min(self.min_insync_replicas, len(state.replicas))
        if len(holders) < wanted:
            raise Violation(f"{node_id} commits {end} of {name}, which only {holders} have")
        if not set(state.in_sync_replicas) <= holders:
            raise Violation(
                f"{node_id} commits {end} of {name}, which {holders} have, and in sync are"
                f" {state.in_sync_replicas}"
            )
        newest = self.image.partition(*identity)
        if newest is not None and newest.leader_epoch == state.leader_epoch:
            missing = set(newest.in_sync_replicas) - holders
            if missing:
                raise Violation(
                    f"{node_id} commits {end} of {name} without {missing}, which may be elected"
                )
        for other_id, node in self._nodes.items():
            reign = self._reigns.get((other_id, identity), -1)
            if reign <= state.leader_epoch or other_id == node_id:
                continue
            if node.worker.is_ended or not _has(node.store_disk.logs.get(identity), batch):
                if node.worker.is_ended:
                    continue
                raise Violation(
                    f"{node_id} commits {end} of {name} in epoch {state.leader_epoch}, which"
                    f" {other_id} does not have, and that leads in epoch {reign}"
                )

    # -- what clients are told ---------------------------------------------------------------------

    def asked(self, request: tuple[int, int], node_id: int) -> None:
        """A request has reached a node."""
        self._asked[request] = (
            node_id,
            self._nodes[node_id].incarnation,
            self._simulation.now_ms,
        )

    def replied(self, request: tuple[int, int]) -> None:
        """A node has answered."""
        if self._asked.pop(request, None) is None:
            raise Violation("a request was answered twice")

    def check_answered(self, patience_ms: int) -> None:
        """Every request to a node that has been running since was answered."""
        for node_id, incarnation, at_ms in self._asked.values():
            is_old = self._simulation.now_ms - at_ms > patience_ms
            if is_old and self._nodes[node_id].incarnation == incarnation:
                raise Violation(f"a request to {node_id} at {at_ms} ms was never answered")

    def acknowledged(self, identity: Identity, offset: int, batch: bytes, count: int) -> None:
        """A producer with acks=all got an acknowledgement of this batch."""
        self.acknowledged_count += 1
        known = self._history(identity).at.get(offset)
        crc = read_header(memoryview(batch)).crc
        if known is None or known.crc != crc or known.end_offset != offset + count:
            raise Violation(f"{offset} was acknowledged and is not what was committed there")

    def refused(self, identity: Identity, producer_id: int, code: int) -> None:
        """A producer with one request at a time never gets a sequence error."""
        if code in (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        ):
            raise Violation(f"producer {producer_id} was refused with {ErrorCode(code).name}")

    def read(self, identity: Identity, fetched: Fetched) -> None:
        """A consumer has read these batches."""
        history = self._history(identity)
        if fetched.high_watermark > history.end_offset:
            raise Violation(f"a consumer sees the high watermark {fetched.high_watermark}")
        for batch in fetched.batches:
            self.read_count += 1
            known = history.at.get(batch.base_offset)
            if known is None or known.crc != batch.crc:
                raise Violation(f"a consumer reads another batch at {batch.base_offset}")

    # -- groups ------------------------------------------------------------------------------------

    def owns(self, group_id: str, generation: int, member_id: str, owned: Sequence[int]) -> None:
        """A member got this assignment."""
        if (group_id, generation, member_id, bytes(owned)) not in self._assigned:
            raise Violation(f"{member_id} owns {owned} of {group_id} before that is committed")
        for partition in owned:
            self.owner_count += 1
            owner = self._owners.setdefault((group_id, generation, partition), member_id)
            if owner != member_id:
                raise Violation(
                    f"{partition} of {group_id} belongs to {owner} and {member_id} in generation"
                    f" {generation}"
                )

    def attempts_offset(self, group_id: str, partition: int, offset: int) -> None:
        """A member sends this commit."""
        key = group_id, partition
        self._attempts[key] = max(offset, self._attempts.get(key, 0))

    def offset_committed(self, group_id: str, partition: int, offset: int) -> None:
        """A member got an acknowledgement of its commit."""
        key = group_id, partition
        self.commit_count += 1
        if offset > self._stored.get(key, -1):
            raise Violation(f"the offset {offset} of {partition} is acknowledged and not committed")
        self._offsets[key] = max(offset, self._offsets.get(key, -1))

    def committed_offset(self, group_id: str, partition: int) -> int:
        """The greatest acknowledged offset."""
        return self._offsets.get((group_id, partition), -1)

    def fetched_offset(self, group_id: str, partition: int, floor: int, offset: int) -> None:
        """A member fetched this offset; `floor` was acknowledged before."""
        if not floor <= offset <= self._attempts.get((group_id, partition), -1):
            raise Violation(
                f"the offset of {partition} is {offset} for {group_id}; {floor} was acknowledged"
                f" before, and at most {self._attempts.get((group_id, partition))} asked for"
            )
        if offset > self._stored.get((group_id, partition), -1):
            raise Violation(f"the offset {offset} of {partition} is told before it is committed")

    # -- share groups ------------------------------------------------------------------------------

    def share_acquired(
        self,
        hosted: HostedSharePartition,
        member: str,
        taken: AcquiredRange,
        now_ms: int,
        until_ms: int,
    ) -> None:
        """A member has acquired records."""
        self.shares.acquired(hosted, member, taken, now_ms, until_ms)

    def share_answered(
        self, hosted: HostedSharePartition, batches: Sequence[Acknowledgement]
    ) -> None:
        """A member got an acknowledgement of its acknowledgements."""
        self.shares.answered(hosted, batches)

    def share_left(self, hosted: HostedSharePartition, member: str) -> None:
        """A member has left."""
        self.shares.left(hosted, member)

    # -- metadata ----------------------------------------------------------------------------------

    def is_leader(self, identity: Identity, node_id: int | None) -> bool:
        """Whether the newest metadata says so, and the node's router knows it."""
        state = self.image.partition(*identity)
        return (
            state is not None
            and state.leader == node_id
            and self._nodes[node_id].router.leader_of(identity) == (node_id, state.leader_epoch)
        )

    def check(self, host_id: int) -> None:
        """After every event: check the node's metadata, and the leaders in it."""
        node = self._nodes[host_id]
        if node.image.offset > self.image.offset:
            self._check_image(node.image)
        worker = node.worker
        if self._workers.get(host_id) is not worker:
            self._workers[host_id] = worker
            for place in [place for place in self._reigns if place[0] == host_id]:
                del self._reigns[place]
        if self._followed.get(host_id) is not worker.image:
            self._followed[host_id] = worker.image
            self._check_reigns(host_id, worker.image)

    def _check_image(self, image: MetadataImage) -> None:
        before, self.image = self.image, image
        if before.topics_by_id is image.topics_by_id:
            return
        for topic_id, topic in image.topics_by_id.items():
            if before.topics_by_id.get(topic_id) is topic:
                continue
            for number, state in enumerate(topic.partitions):
                known = before.partition(topic_id, number)
                if known != state:
                    self._check_partition((topic_id, number), known, state)

    def _check_partition(
        self, identity: Identity, before: PartitionImage | None, state: PartitionImage
    ) -> None:
        name = f"{identity[0][-1]}-{identity[1]}"
        self._simulation.note(
            f"{name} is led by {state.leader} in epoch {state.leader_epoch}, in sync are"
            f" {state.in_sync_replicas}, eligible {state.elr or state.last_known_elr}"
        )
        if before is not None:
            self.epoch_count += state.leader_epoch != before.leader_epoch
            if state.leader_epoch < before.leader_epoch:
                raise Violation(f"the leader epoch of {name} goes back")
            if state.partition_epoch <= before.partition_epoch:
                raise Violation(f"{name} is another in the same partition epoch")
            if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
                raise Violation(f"{name} has another leader in the same epoch")
        if state.leader != NO_LEADER and state.leader not in state.in_sync_replicas:
            raise Violation(f"{state.leader} leads {name} and is not in sync")
        self.check_complete(identity, state)

    def check_complete(self, identity: Identity, state: PartitionImage) -> None:
        """A replica that may be elected has all committed batches."""
        history = self._history(identity)
        candidates = {*state.in_sync_replicas, *state.elr, *state.last_known_elr}
        if not history.batches or not state.replicas:
            return
        last = history.batches[-1]
        if not any(_has(self._logs(c).get(identity), last) for c in candidates):
            raise Violation(
                f"none of {candidates}, who may lead {identity[0][-1]}-{identity[1]}, has"
                f" everything up to {last.end_offset}"
            )

    def check_all_complete(self) -> None:
        """The same, for all partitions."""
        for topic_id, topic in self.image.topics_by_id.items():
            for number, state in enumerate(topic.partitions):
                self.check_complete((topic_id, number), state)

    def _check_reigns(self, node_id: int, image: MetadataImage) -> None:
        """Leader completeness: a new leader has all committed batches."""
        logs = self._logs(node_id)
        for topic_id, topic in image.topics_by_id.items():
            for number, state in enumerate(topic.partitions):
                place = node_id, (topic_id, number)
                if state.leader != node_id:
                    self._reigns.pop(place, None)
                elif self._reigns.get(place) != state.leader_epoch:
                    self._reigns[place] = state.leader_epoch
                    self._simulation.note(
                        f"{node_id} begins to lead {topic.name}-{number} in epoch"
                        f" {state.leader_epoch}"
                    )
                    self._check_reign(node_id, logs.get((topic_id, number)), state, place[1])

    def _check_reign(
        self, node_id: int, log: DiskLog | None, state: PartitionImage, identity: Identity
    ) -> None:
        newest = self.image.partition(*identity)
        if newest is None or newest.leader_epoch != state.leader_epoch:
            return  # it is over before it has begun: what it does not have nobody asks it for
        for batch in self._history(identity).batches:
            if not _has(log, batch):
                raise Violation(
                    f"{node_id} leads {identity[0][-1]}-{identity[1]} in epoch"
                    f" {state.leader_epoch} without {batch.base_offset} of epoch"
                    f" {batch.leader_epoch}, which was committed"
                )

    # -- inside ------------------------------------------------------------------------------------

    def power_lost(self, node_id: int, lost: Sequence[tuple[Identity, SimulatedBatch]]) -> None:
        """The unsynced ends of some logs are lost."""
        self.lost_count += len(lost)
        for identity, batch in lost:
            self._had(node_id, identity, (batch,))
        for place in [place for place in self._verified if place[0] == node_id]:
            self._verified[place] = 0

    def _had(self, node_id: int, identity: Identity, batches: Sequence[SimulatedBatch]) -> None:
        for batch in batches:
            key = (identity, batch.base_offset, batch.leader_epoch)
            self._lost.setdefault(key, set()).add(node_id)

    def _history(self, identity: Identity) -> History:
        history = self.histories.get(identity)
        if history is None:
            history = self.histories[identity] = History()
        return history

    def _logs(self, node_id: int) -> Mapping[Identity, DiskLog]:
        return self._nodes[node_id].store_disk.logs


def _has(log: DiskLog | None, batch: SimulatedBatch) -> bool:
    found = None if log is None else log.batch_at(batch.base_offset)
    return found is not None and found.crc == batch.crc and found.leader_epoch == batch.leader_epoch


def _name(log: DiskLog) -> str:
    return f"{log.topic_name}-{log.identity[1]}"


def _plain_entries_of(batch: SimulatedBatch) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a batch outside of transactions."""
    entries = decode_entries(memoryview(batch.data), batch.base_offset)
    return [
        (
            None if entry[0] is None else bytes(entry[0]),
            None if entry[1] is None else bytes(entry[1]),
        )
        for entry in entries
        if not isinstance(entry, TransactionMarker | TransactionalEntry)
    ]

"""Clusters with one bug each, all of which exist in some implementation.

One function is wrong; everything else is the real code. Some of these bugs were ours, found by the
simulation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from odradek.cluster.controller import brokers, in_sync_replicas, partition_changes
from odradek.cluster.controller.commands import MetadataCommand, RegisterBroker
from odradek.cluster.controller.controller import Controller
from odradek.cluster.controller.state import ControllerResult
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import Record, decode_records, encode_records
from odradek.cluster.raft.configuration import ProposalRefusal
from odradek.cluster.raft.messages import Entry
from odradek.cluster.replication.follower import FetchedPartition, ReplicaFetchSession
from odradek.cluster.replication.leader import LeaderPartition
from odradek.cluster.replication.partition import PartitionReplica
from odradek.coordinator.group.rewind.live_rewinder import LiveRewinder, RewindWaiter
from odradek.coordinator.group.rewind.records import Rewind
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Outcome, ShardReply, TransactionMarker
from odradek.coordinator.runtime import ShardRuntime
from odradek.coordinator.transaction.records import TransactionRecord
from odradek.coordinator.transaction.requests import WriteMarkers
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.node.controller.active_controller import ActiveController, NotProposedError
from odradek.node.router.transactions.markers import MarkerWriter
from odradek.protocol.control_records import EndTransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import BatchHeader
from odradek.protocol.types import NO_EPOCH
from odradek.storage.leader_epochs import LeaderEpochs
from odradek.storage.partition_log import PartitionLog
from odradek.storage.status import ReplicaRole
from odradek.storage.validation import check_coordinator_batch
from tests.simulation import store
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.store import SimulatedStore
from tests.simulation.trouble import (
    CUTS,
    DEPOSED,
    GROUPS,
    KILLS,
    LAGGARDS,
    LATE_MARKERS,
    MOVES,
    POWER,
    RESTARTS,
    TRANSACTIONS,
    UNSTEADY,
    WAVERING,
    Trouble,
)


class PlantedBug(NamedTuple):
    """`wrong` replaces the attribute `name` of `owner`; `trouble` shows it soonest. `seed` is tried
    first: it showed the bug when it was written down here."""

    owner: object
    name: str
    wrong: object
    trouble: Trouble
    finding: str
    seed: int = 0


# -- the controller --------------------------------------------------------------------------------

_handle = Controller.handle


def _takes_every_log_for_whole(
    self: Controller, command: MetadataCommand, now_ms: int
) -> ControllerResult:
    if isinstance(command, RegisterBroker):
        command = msgspec.structs.replace(command, previous_broker_epoch=None)
    return _handle(self, command, now_ms)


def decides_on_what_is_committed(
    self: ActiveController, records: Sequence[Record], *, frees_space: bool
) -> None:
    if records:
        proposal = self._driver.propose(encode_records(records))
        if isinstance(proposal, ProposalRefusal):
            raise NotProposedError(proposal)


def follows_what_is_committed(self: ActiveController, entry: Entry) -> MetadataImage | None:
    self.controller.replay(decode_records(entry.data) if entry.is_command else (), entry.index)
    return None


_elected = partition_changes._elect


def _elects_anybody(*arguments: object) -> int:
    rules, replicas = arguments[1], arguments[2]
    assert isinstance(rules, partition_changes.ElectionRules)
    leader = _elected(*arguments)  # type: ignore[arg-type]  # handed through
    if leader >= 0:
        return leader
    assert isinstance(replicas, tuple)
    return next((replica for replica in replicas if replica in rules.active), leader)


# -- leaders and followers -------------------------------------------------------------------------


def _counts_who_was_heard_of(self: PartitionReplica) -> int:
    in_sync = self.image.in_sync_replicas
    return min(end for broker, end in self._log_ends.items() if broker in in_sync)


def _forgets_what_it_proposed(self: PartitionReplica) -> int:
    ends = self._log_ends
    return min((ends.get(replica, 0) for replica in self.image.in_sync_replicas), default=0)


def _lets_anybody_join(
    self: LeaderPartition[object], broker_id: int, now_ms: int, *, has_fetched: bool
) -> bool:
    progress = self._followers.get(broker_id)
    return progress is not None and progress.broker is not None


_follow = ReplicaFetchSession.add_partition


def _goes_on_in_a_new_epoch(
    self: ReplicaFetchSession, topic_id: bytes, partition: int, **known: int
) -> FetchedPartition:
    followed = self._by_identity.get((topic_id, partition))
    if followed is not None:
        followed.leader_epoch = known["leader_epoch"]
    return _follow(self, topic_id, partition, **known)  # type: ignore[arg-type]  # handed through


def _knows_of_no_divergence(
    self: SimulatedStore, number: int, leader_epoch: int
) -> tuple[int, int]:
    return leader_epoch, self.partitions()[number].log_end_offset


_set_leader_epoch = SimulatedStore.set_leader_epoch


def _cuts_to_its_high_watermark(
    self: SimulatedStore, number: int, leader_epoch: int, role: ReplicaRole
) -> None:
    state = self.partitions()[number]
    if role is ReplicaRole.FOLLOWER and leader_epoch > state.leader_epoch:
        self.truncate({number: state.high_watermark}, 0)
    _set_leader_epoch(self, number, leader_epoch, role)


# -- coordinators ----------------------------------------------------------------------------------

_apply = ShardRuntime._apply
_load = ShardRuntime.load


def answers_before_the_commit(
    self: ShardRuntime[object], outcome: Outcome[object], now_ms: int, answers: list[object]
) -> None:
    replies = tuple(
        ShardReply(reply.request_id, reply.response, is_immediate=True) for reply in outcome.replies
    )
    outcome = msgspec.structs.replace(outcome, replies=replies)
    _apply(self, outcome, now_ms, answers)  # type: ignore[arg-type]  # handed through


def _takes_its_log_for_committed(
    self: ShardRuntime[object],
    entries: Sequence[tuple[bytes | None, bytes | None]],
    *,
    is_committed: bool = True,
) -> None:
    _load(self, entries)


# -- transactions ----------------------------------------------------------------------------------


def _sends_before_the_commit(
    self: ShardRuntime[object], outcome: Outcome[object], now_ms: int, answers: list[object]
) -> None:
    self._effects += outcome.effects
    outcome = msgspec.structs.replace(outcome, effects=())
    _apply(self, outcome, now_ms, answers)  # type: ignore[arg-type]  # handed through


def _forgets_what_is_open(_self: TransactionShard, _now_ms: int) -> Outcome[TransactionRecord]:
    return Outcome()


async def _takes_one_marker_for_all(
    self: MarkerWriter,
    effect: WriteMarkers,
    partitions: frozenset[Partition],
    marker: TransactionMarker,
) -> frozenset[Partition]:
    left = await _try(self, effect, partitions, marker)
    return frozenset() if len(left) < len(partitions) else left


_try = MarkerWriter._try


def _rewinds_before_members_agree_anew(
    self: LiveRewinder,
    group_id: str,
    rewind: Rewind,
    _timeout_ms: int,
    waiter: RewindWaiter,
    step: GroupStep,
) -> None:
    self._waiters.setdefault(group_id, []).append(waiter)
    self._finish(group_id, rewind, step)


def _takes_markers_of_any_coordinator(
    log: PartitionLog, batch: memoryview, header: BatchHeader
) -> EndTransactionMarker | None:
    entry = log.producers.get(header.producer_id)
    if entry is not None:
        log.producers[header.producer_id] = entry._replace(coordinator_epoch=NO_EPOCH)
    return check_coordinator_batch(log, batch, header)


_COMMITTED_ANOTHER = (
    "commits another batch|leads .* without|which .* does not have|differ at|which only"
)

_TORN = (
    "not whole|torn|was committed|was aborted|never committed|is read in|the offset of|do not end"
)

PLANTED: dict[str, PlantedBug] = {
    "an ISR is changed whatever the epochs": PlantedBug(
        in_sync_replicas,
        "_check",
        lambda *_: ErrorCode.NONE,
        CUTS,
        ".",
        seed=9,
    ),
    "who has restarted leads before it is registered": PlantedBug(
        ClusterNode,
        "registration",
        property(lambda node: node.image.brokers.get(node.own_id)),
        POWER,
        "without|none of|differ at|not whole|cuts .* committed",
    ),
    "who lost power is taken for whole": PlantedBug(
        Controller, "handle", _takes_every_log_for_whole, POWER, "without|none of"
    ),
    "a new incarnation goes on leading": PlantedBug(
        brokers, "_predecessor_losses", lambda *_: [], POWER, "without|none of|write to"
    ),
    "anybody may lead": PlantedBug(
        partition_changes,
        "_elect",
        _elects_anybody,
        KILLS,
        "without|none of",
        seed=20,
    ),
    "commands are decided on what is committed": PlantedBug(
        ActiveController, "propose", decides_on_what_is_committed, KILLS, "."
    ),
    "who was not heard of does not count": PlantedBug(
        PartitionReplica,
        "_committed_end",
        _counts_who_was_heard_of,
        KILLS,
        "in sync are|which only|without",
    ),
    "a proposal holds nothing back": PlantedBug(
        PartitionReplica,
        "_committed_end",
        _forgets_what_it_proposed,
        CUTS,
        "may be elected|without|only",
        seed=14,
    ),
    "who lags may join": PlantedBug(
        LeaderPartition, "_can_join", _lets_anybody_join, LAGGARDS, "without|none of|in sync are"
    ),
    "min.insync.replicas does not hold back": PlantedBug(
        PartitionReplica, "has_enough_in_sync", property(lambda _: True), KILLS, "which only"
    ),
    "followers go on in a new epoch": PlantedBug(
        ReplicaFetchSession, "add_partition", _goes_on_in_a_new_epoch, MOVES, "."
    ),
    "nobody looks at epochs for divergence": PlantedBug(
        SimulatedStore, "end_offset_for_epoch", _knows_of_no_divergence, CUTS, _COMMITTED_ANOTHER
    ),
    "logs are cut to the high watermark (KIP-101)": PlantedBug(
        SimulatedStore,
        "set_leader_epoch",
        _cuts_to_its_high_watermark,
        RESTARTS,
        "committed|in sync are",
    ),
    "coordinators answer before the commit": PlantedBug(
        ShardRuntime, "_apply", answers_before_the_commit, GROUPS, "offset|belongs to|owns"
    ),
    "offsets are set while the old generation may commit": PlantedBug(
        LiveRewinder,
        "_begin",
        _rewinds_before_members_agree_anew,
        replace(GROUPS, rewind_interval_ms=150),
        "was acknowledged before",
    ),
    # This one was ours, found by the simulation.
    "coordinators take their logs for committed": PlantedBug(
        ShardRuntime,
        "load",
        _takes_its_log_for_committed,
        UNSTEADY,
        "offset|belongs to|owns",
        seed=15,
    ),
    "a reign without records covers others' records": PlantedBug(
        LeaderEpochs,
        "drop_if_empty",
        lambda *_: None,
        WAVERING,
        "cuts .* committed|not whole",
        seed=9,
    ),
    "markers are written before the decision is committed": PlantedBug(
        ShardRuntime, "_apply", _sends_before_the_commit, DEPOSED, _TORN
    ),
    "open transactions are forgotten by who loads them": PlantedBug(
        TransactionShard,
        "on_loaded",
        _forgets_what_is_open,
        TRANSACTIONS,
        "do not end|not whole",
    ),
    "markers of a deposed coordinator are taken": PlantedBug(
        store,
        "check_coordinator_batch",
        _takes_markers_of_any_coordinator,
        LATE_MARKERS,
        _TORN,
        seed=49,
    ),
    "one marker is taken for all": PlantedBug(
        MarkerWriter, "_try", _takes_one_marker_for_all, TRANSACTIONS, _TORN
    ),
}

"""Leader elections: when brokers are fenced or unfenced, on request, and to rebalance leaders.

All partitions of a broker change in one entry of the log: the death of a broker is one change of
the metadata. `partition_changes` has the rules for one partition.
"""

from collections.abc import Iterable, Sequence, Set
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from odradek.cluster.controller.commands import (
    ElectLeaders,
    PartitionChangeResult,
    PartitionReference,
    PartitionsReply,
)
from odradek.cluster.controller.partition_changes import (
    LeaderElection,
    PartitionChangeSet,
    changed_partition,
    has_min_isr,
    with_next_leader_epoch,
)
from odradek.cluster.controller.partition_index import TopicIdPartition
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from odradek.cluster.metadata.image import NO_LEADER, BrokerImage
from odradek.cluster.metadata.records import ConfigChanged, FeatureLevelChanged, Record
from odradek.protocol.errors import ApiError, ErrorCode

_NO_BROKERS: Final[frozenset[int]] = frozenset()
REBALANCED_PARTITIONS_MAX: Final = 1000
"""Elections of one rebalancing of preferred leaders: Kafka's limit."""


class ElectionType(IntEnum):
    """The kinds of elections of ElectLeaders, with the numbers of the wire (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


def remove_from_isrs(
    state: ControllerState,
    fenced: Set[int],
    *,
    unclean_shutdown: Set[int] = _NO_BROKERS,
    erased: Set[int] = _NO_BROKERS,
) -> list[Record]:
    """Remove brokers from all ISRs, and as leaders.

    `fenced` are those that are fenced, shut down or unregistered. `unclean_shutdown` and `erased`
    are those whose logs have lost records, see `changed_partition`; they may serve all the same.
    """
    decisions = state.decisions(without=fenced | unclean_shutdown | erased)
    index = state.index
    gone = fenced | unclean_shutdown | erased
    topic_partitions: dict[TopicIdPartition, None] = {}
    for broker in sorted(gone):
        topic_partitions.update(dict.fromkeys(index.in_sync_on(broker)))
    for broker in sorted(unclean_shutdown | erased):
        topic_partitions.update(dict.fromkeys(index.eligible_on(broker)))
    for topic_partition in topic_partitions:
        before = decisions.partition(topic_partition)
        in_sync = [replica for replica in before.in_sync_replicas if replica not in fenced]
        rules = decisions.rules(topic_partition[0])
        decisions.put(
            topic_partition,
            changed_partition(
                before, rules, in_sync=in_sync, unclean_shutdown=unclean_shutdown, erased=erased
            ),
        )
    return decisions.records


def raise_leader_epochs(state: ControllerState, broker: BrokerImage) -> list[Record]:
    """Begin a new leader epoch in all partitions that a restarted broker goes on leading.

    It may have lost records that consumers and followers have read, and write others at their
    offsets. With a new leader epoch they notice that (KIP-320). `broker` is the new registration:
    its log directories may be offline, or online again.
    """
    brokers = {**state.image.brokers, broker.broker_id: broker}
    decisions = state.decisions(image=msgspec.structs.replace(state.image, brokers=brokers))
    for topic_partition in state.index.led_by(broker.broker_id):
        before = decisions.partition(topic_partition)
        if broker.is_online(before.directory_of(broker.broker_id)):
            decisions.put(topic_partition, with_next_leader_epoch(before))
        else:
            _reelect(decisions, (topic_partition,))
    former = state.image.brokers.get(broker.broker_id)
    if former is not None and former.offline_log_dirs:
        _reelect(decisions, state.index.leaderless())
    return decisions.records


class ControlledShutdownChanges(NamedTuple):
    """The records by which a broker in controlled shutdown hands over partitions, and whether more
    partitions can be handed over later."""

    records: list[Record]
    is_waiting: bool


def hand_over_partitions(state: ControllerState, broker_id: int) -> ControlledShutdownChanges:
    """Remove a broker in controlled shutdown from ISRs, and as leader where another can lead.

    It stays in an ISR that would be too small without it, while there is a replica that may still
    catch up. It stays the leader where no other replica can lead. Without such a replica there is
    nothing to wait for.
    """
    decisions = state.decisions(shutting_down={broker_id})
    active = decisions.active
    is_waiting = False
    for topic_partition in state.index.in_sync_on(broker_id):
        before = decisions.partition(topic_partition)
        rules = decisions.rules(topic_partition[0])
        rest = [replica for replica in before.in_sync_replicas if replica != broker_id]
        others = [replica for replica in before.replicas if replica in active]
        can_lead = any(replica in active for replica in rest)
        if can_lead and has_min_isr(rest, rules, before.replicas):
            decisions.put(topic_partition, changed_partition(before, rules, in_sync=rest))
        elif any(replica not in rest for replica in others):
            is_waiting = True
        elif can_lead:
            decisions.put(topic_partition, changed_partition(before, rules, in_sync=rest))
    return ControlledShutdownChanges(decisions.records, is_waiting)


def elect_leaderless(state: ControllerState, broker_id: int) -> list[Record]:
    """Elect leaders for partitions without one, now that a broker may lead again."""
    decisions = state.decisions(including={broker_id})
    _reelect(decisions, state.index.leaderless())
    return decisions.records


def partition_changes_after(state: ControllerState, records: Sequence[Record]) -> list[Record]:
    """The partition changes that follow from configs and features that a command sets.

    If min.insync.replicas falls to the size of the ISR, more is committed than the eligible leaders
    have, and they are removed. If unclean elections become allowed, any active replica leads.
    Without the feature there are no eligible leaders.
    """
    keys = {record.key for record in records if isinstance(record, ConfigChanged)}
    is_about_elr = any(
        isinstance(record, FeatureLevelChanged) and record.name == ELIGIBLE_LEADER_REPLICAS_VERSION
        for record in records
    )
    topic_partitions: dict[TopicIdPartition, None] = {}
    if is_about_elr or "min.insync.replicas" in keys:
        topic_partitions.update(dict.fromkeys(state.index.with_eligible_leaders()))
    if is_about_elr or "unclean.leader.election.enable" in keys:
        topic_partitions.update(dict.fromkeys(state.index.leaderless()))
    if not topic_partitions:
        return []
    decisions = state.decisions(image=image_after(state.image, records, state.image.offset))
    if is_about_elr:
        _clear_eligible_leaders(decisions, topic_partitions)
    _reelect(decisions, topic_partitions)
    return decisions.records


def elect_leaders(state: ControllerState, command: ElectLeaders) -> ControllerResult:
    """Elect the requested leaders. For all partitions, only those that needed it are answered."""
    try:
        election_type = ElectionType(command.election_type)
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown election type {command.election_type}",
        ) from None
    decisions = state.decisions()
    results: list[PartitionChangeResult] = []
    for reference in _requested_partitions(state, command):
        result = _elect(state, decisions, reference, election_type)
        if command.partitions is not None or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            results.append(result)
    return ControllerResult(tuple(decisions.records), PartitionsReply(tuple(results)))


def preferred_elections(state: ControllerState) -> list[Record]:
    """Elect preferred leaders that are in sync again, REBALANCED_PARTITIONS_MAX at a time."""
    decisions = state.decisions()
    elected = 0
    for topic_partition in state.index.imbalanced():
        before = decisions.partition(topic_partition)
        preferred = before.replicas[0]
        if preferred in before.in_sync_replicas and preferred in decisions.active:
            rules = decisions.rules(topic_partition[0])
            decisions.put(
                topic_partition, changed_partition(before, rules, election=LeaderElection.PREFERRED)
            )
            elected += 1
            if elected == REBALANCED_PARTITIONS_MAX:
                break
    return decisions.records


def _reelect(decisions: PartitionChangeSet, topic_partitions: Iterable[TopicIdPartition]) -> None:
    for topic_partition in topic_partitions:
        before = decisions.partition(topic_partition)
        decisions.put(
            topic_partition, changed_partition(before, decisions.rules(topic_partition[0]))
        )


def _clear_eligible_leaders(
    decisions: PartitionChangeSet, topic_partitions: Iterable[TopicIdPartition]
) -> None:
    """Eligible leaders become the ISR where it is empty, if the feature is switched off."""
    for topic_partition in topic_partitions:
        before = decisions.partition(topic_partition)
        rules = decisions.rules(topic_partition[0])
        if not rules.has_elr and not before.in_sync_replicas:
            in_sync = before.elr or before.last_known_elr
            decisions.put(topic_partition, changed_partition(before, rules, in_sync=in_sync))


def _requested_partitions(
    state: ControllerState, command: ElectLeaders
) -> Iterable[PartitionReference]:
    if command.partitions is not None:
        yield from dict.fromkeys(command.partitions)
        return
    for topic in state.image.topics_by_id.values():
        for partition in range(len(topic.partitions)):
            yield PartitionReference(topic.name, partition)


def _elect(
    state: ControllerState,
    decisions: PartitionChangeSet,
    reference: PartitionReference,
    election_type: ElectionType,
) -> PartitionChangeResult:
    name, number = reference.topic, reference.partition
    topic = state.image.topics_by_name.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        text = (
            f"No such topic as {name}" if topic is None else f"No such partition as {name}-{number}"
        )
        return PartitionChangeResult(name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    topic_partition = (topic.topic_id, number)
    before = decisions.partition(topic_partition)
    if election_type is ElectionType.PREFERRED:
        leader = before.replicas[0]
        is_done = before.leader == leader
        election, missing = LeaderElection.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        reason = f"Broker {leader} is not in sync, or fenced or in controlled shutdown."
    else:
        leader = None
        is_done = before.leader != NO_LEADER
        election, missing = LeaderElection.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        reason = f"All of the brokers {list(before.replicas)} are fenced or in controlled shutdown."
    if is_done:
        return PartitionChangeResult(
            name, number, ErrorCode.ELECTION_NOT_NEEDED, f"Broker {before.leader} is the leader."
        )
    after = changed_partition(before, decisions.rules(topic.topic_id), election=election)
    if after is None or after.leader == NO_LEADER or leader not in (None, after.leader):
        return PartitionChangeResult(name, number, missing, reason)
    decisions.put(topic_partition, after)
    return PartitionChangeResult(name, number)

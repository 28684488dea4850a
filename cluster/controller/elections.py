"""Who leads when brokers go and come, when an operator asks, and when leadership has drifted.

All partitions of a broker are decided together and their records are of one entry, so that a
broker's death is one change of the metadata. The rules for a single partition are
`partition_changes`'.
"""

from collections.abc import Iterable, Sequence, Set
from enum import IntEnum
from typing import Final, NamedTuple

from odradek.cluster.controller.commands import (
    ElectLeaders,
    PartitionReference,
    PartitionResult,
    PartitionsReply,
)
from odradek.cluster.controller.partition_changes import (
    Election,
    PartitionDecisions,
    changed_partition,
    is_enough,
)
from odradek.cluster.controller.partition_index import Place
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from odradek.cluster.metadata.image import NO_LEADER, PartitionImage
from odradek.cluster.metadata.records import ConfigChanged, FeatureLevelChanged, Record
from odradek.protocol.errors import ApiError, ErrorCode

_NOBODY: Final[frozenset[int]] = frozenset()
REBALANCED_MAX: Final = 1000
"""Elections of one preferred rebalancing; as many as in Kafka."""


class ElectionType(IntEnum):
    """What ElectLeaders can ask for, with the numbers of the wire (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


def without_brokers(
    state: ControllerState,
    leaving: Set[int],
    *,
    lost: Set[int] = _NOBODY,
    erased: Set[int] = _NOBODY,
) -> list[Record]:
    """Take brokers out of the ISRs and out of the lead, wherever they are.

    `leaving` are those that are fenced, shut down or gone. `lost` and `erased` are those whose
    logs have suffered, see `changed_partition`; whether they go on serving is another matter.
    """
    decisions = state.decisions(without=leaving | lost | erased)
    index = state.index
    gone = leaving | lost | erased
    places: dict[Place, None] = {}
    for broker in sorted(gone):
        places.update(dict.fromkeys(index.in_sync_on(broker)))
    for broker in sorted(lost | erased):
        places.update(dict.fromkeys(index.eligible_on(broker)))
    for place in places:
        before = decisions.partition(place)
        in_sync = [replica for replica in before.in_sync_replicas if replica not in leaving]
        rules = decisions.rules(place[0])
        decisions.put(
            place, changed_partition(before, rules, in_sync=in_sync, lost=lost, erased=erased)
        )
    return decisions.records


class HandOver(NamedTuple):
    """What a broker in controlled shutdown gives up now, and whether there is more to wait for."""

    records: list[Record]
    is_waiting: bool


def hand_over(state: ControllerState, broker_id: int) -> HandOver:
    """Take a broker that is about to stop out of the ISRs and out of the lead where others do.

    It keeps for now what would suffer: a place in an ISR that would be too small without it while
    there is a replica that may catch up yet, and the lead where nobody could take it. Where there
    is no such replica there is nothing to wait for either.
    """
    decisions = state.decisions(leaving={broker_id})
    active = decisions.active
    is_waiting = False
    for place in state.index.in_sync_on(broker_id):
        before = decisions.partition(place)
        rules = decisions.rules(place[0])
        rest = [replica for replica in before.in_sync_replicas if replica != broker_id]
        others = [replica for replica in before.replicas if replica in active]
        can_lead = any(replica in active for replica in rest)
        if can_lead and is_enough(rest, rules, before.replicas):
            decisions.put(place, changed_partition(before, rules, in_sync=rest))
        elif any(replica not in rest for replica in others):
            is_waiting = True
        elif can_lead:
            decisions.put(place, changed_partition(before, rules, in_sync=rest))
    return HandOver(decisions.records, is_waiting)


def with_broker(state: ControllerState, broker_id: int) -> list[Record]:
    """Elect leaders for partitions without one, now that a broker may lead again."""
    decisions = state.decisions(including={broker_id})
    _reconsider(decisions, state.index.leaderless())
    return decisions.records


def consequences(state: ControllerState, records: Sequence[Record]) -> list[Record]:
    """What configs and features that a command sets mean for partitions at once.

    Where min.insync.replicas falls to the size of the ISR, more is committed than the eligible
    leaders have, so that they are none any more; where unclean elections become allowed, whoever
    is there leads; without the feature there are no eligible leaders.
    """
    keys = {record.key for record in records if isinstance(record, ConfigChanged)}
    is_about_elr = any(
        isinstance(record, FeatureLevelChanged) and record.name == ELIGIBLE_LEADER_REPLICAS_VERSION
        for record in records
    )
    places: dict[Place, None] = {}
    if is_about_elr or "min.insync.replicas" in keys:
        places.update(dict.fromkeys(state.index.eligible_anywhere()))
    if is_about_elr or "unclean.leader.election.enable" in keys:
        places.update(dict.fromkeys(state.index.leaderless()))
    if not places:
        return []
    decisions = state.decisions(image=state.after(records))
    if is_about_elr:
        _without_eligible(decisions, places)
    _reconsider(decisions, places)
    return decisions.records


def elect_leaders(state: ControllerState, command: ElectLeaders) -> ControllerResult:
    """Elect where it was asked for; of "everywhere", only what needed it is answered."""
    try:
        election_type = ElectionType(command.election_type)
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{command.election_type} is no type of election: 0 elects preferred leaders, 1 anybody"
            " if it must be",
        ) from None
    decisions = state.decisions()
    results: list[PartitionResult] = []
    for reference in _named(state, command):
        result = _elect(state, decisions, reference, election_type)
        if command.partitions is not None or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            results.append(result)
    return ControllerResult(tuple(decisions.records), PartitionsReply(tuple(results)))


def preferred_elections(state: ControllerState) -> list[Record]:
    """Give the lead back to preferred leaders that are in sync again, REBALANCED_MAX at a time."""
    decisions = state.decisions()
    elected = 0
    for place in state.index.unpreferred():
        before = decisions.partition(place)
        preferred = before.replicas[0]
        if preferred in before.in_sync_replicas and preferred in decisions.active:
            rules = decisions.rules(place[0])
            decisions.put(place, changed_partition(before, rules, election=Election.PREFERRED))
            elected += 1
            if elected == REBALANCED_MAX:
                break
    return decisions.records


def _reconsider(decisions: PartitionDecisions, places: Iterable[Place]) -> None:
    for place in places:
        before = decisions.partition(place)
        decisions.put(place, changed_partition(before, decisions.rules(place[0])))


def _without_eligible(decisions: PartitionDecisions, places: Iterable[Place]) -> None:
    """An ISR that only eligible leaders stood in for is theirs, once there are none any more."""
    for place in places:
        before = decisions.partition(place)
        rules = decisions.rules(place[0])
        if not rules.has_elr and not before.in_sync_replicas:
            in_sync = before.elr or before.last_known_elr
            decisions.put(place, changed_partition(before, rules, in_sync=in_sync))


def _named(state: ControllerState, command: ElectLeaders) -> Iterable[PartitionReference]:
    if command.partitions is not None:
        yield from dict.fromkeys(command.partitions)
        return
    for topic in state.image.topics_by_id.values():
        for partition in range(len(topic.partitions)):
            yield PartitionReference(topic.name, partition)


def _elect(
    state: ControllerState,
    decisions: PartitionDecisions,
    reference: PartitionReference,
    election_type: ElectionType,
) -> PartitionResult:
    name, number = reference.topic, reference.partition
    topic = state.image.topics_by_name.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        text = f"there is no partition {name}-{number}"
        return PartitionResult(name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    place = (topic.topic_id, number)
    before = decisions.partition(place)
    if election_type is ElectionType.PREFERRED:
        is_done = before.leader == before.replicas[0]
        election, missing = Election.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        is_done = before.leader != NO_LEADER
        election, missing = Election.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    if is_done:
        return PartitionResult(
            name, number, ErrorCode.ELECTION_NOT_NEEDED, f"broker {before.leader} leads already"
        )
    after = changed_partition(before, decisions.rules(topic.topic_id), election=election)
    if after is None or not _is_as_asked(after, election_type):
        return PartitionResult(name, number, missing, _why_not(before, election_type))
    decisions.put(place, after)
    return PartitionResult(name, number)


def _is_as_asked(after: PartitionImage, election_type: ElectionType) -> bool:
    if election_type is ElectionType.PREFERRED:
        return after.leader == after.replicas[0]
    return after.leader != NO_LEADER


def _why_not(before: PartitionImage, election_type: ElectionType) -> str:
    if election_type is ElectionType.PREFERRED:
        return f"broker {before.replicas[0]} is not in sync, or not available"
    return f"none of the brokers {list(before.replicas)} is available"

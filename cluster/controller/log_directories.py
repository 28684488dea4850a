"""The log directories of replicas (KIP-112, KIP-858): which one a new replica gets, and what
happens when one fails.

A broker registers the directories that it has. A new replica gets the one with the fewest replicas,
of those that are online and not cordoned: in the same entry of the log in which it is created. A
broker whose directory has failed registers again: its replicas there leave their ISRs and lead no
more, all others stay. A directory that is not registered any more, because it was taken out
of log.dirs, has lost its replicas: the broker starts them anew in another one.

Pure. A directory is None where it is the first one of its broker, as in `PartitionImage`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from odradek.cluster.controller.commands import AssignReplicasToDirs, PartitionsReply
from odradek.cluster.controller.partition_changes import changed_partition
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.image import BrokerImage, PartitionImage, ReplicaDirectory
from odradek.cluster.metadata.records import PartitionChanged, PartitionsAdded, Record
from odradek.protocol.types import Uuid

_Directory = Uuid | None


def place_in_directories(state: ControllerState, records: Iterable[Record]) -> tuple[Record, ...]:
    """The records of a command, with a log directory for each new replica of a broker that has
    several. Replicas that are removed leave none behind."""
    records = tuple(records)
    brokers = {
        broker_id: broker
        for broker_id, broker in state.image.brokers.items()
        if len(broker.log_dirs) > 1
    }
    if not brokers:
        return records
    placement = _Placement(state, brokers)
    placed: list[Record] = []
    for record in records:
        match record:
            case PartitionsAdded():
                partitions = tuple(placement.of(None, each) for each in record.partitions)
                placed.append(msgspec.structs.replace(record, partitions=partitions))
            case PartitionChanged():
                before = state.image.partition(record.topic_id, record.partition)
                after = placement.of(before, record.state)
                placed.append(msgspec.structs.replace(record, state=after))
            case _:
                placed.append(record)
    return tuple(placed)


class _Placement:
    """Counts the replicas of each directory while a command places more."""

    def __init__(self, state: ControllerState, brokers: dict[int, BrokerImage]) -> None:
        self._state = state
        self._brokers = brokers
        self._candidates: dict[int, Sequence[_Directory]] = {}
        self._added: Counter[tuple[int, _Directory]] = Counter()

    def of(self, before: PartitionImage | None, after: PartitionImage) -> PartitionImage:
        """The partition with a directory for each replica that it did not have before."""
        known = before.replicas if before is not None else ()
        if before is not None and known == after.replicas:
            return after
        directories = [each for each in after.directories if each.broker_id in after.replicas]
        for replica in after.replicas:
            if replica in known or replica not in self._brokers:
                continue
            directory = self._next(replica)
            if directory is not None:
                directories.append(ReplicaDirectory(replica, directory))
        if tuple(directories) == after.directories:
            return after
        return msgspec.structs.replace(after, directories=tuple(directories))

    def moved(self, partition: PartitionImage, broker_id: int) -> PartitionImage:
        """The partition with the replica of a broker in another directory."""
        directories = [each for each in partition.directories if each.broker_id != broker_id]
        directory = self._next(broker_id)
        if directory is not None:
            directories.append(ReplicaDirectory(broker_id, directory))
        return msgspec.structs.replace(partition, directories=tuple(directories))

    def _next(self, broker_id: int) -> _Directory:
        """The directory with the fewest replicas."""
        candidates = self._candidates.get(broker_id)
        if candidates is None:
            candidates = usable_directories(self._state, self._brokers[broker_id])
            self._candidates[broker_id] = candidates
        index, added = self._state.index, self._added
        # Of several, the first one in the order of log.dirs.
        chosen = min(
            candidates,
            key=lambda each: index.replica_count(broker_id, each) + added[broker_id, each],
        )
        added[broker_id, chosen] += 1
        return chosen


def usable_directories(state: ControllerState, broker: BrokerImage) -> Sequence[_Directory]:
    """The directories of a broker for new replicas: those that are online and not cordoned. Without
    any, those that are online, and without any of these, the first one."""
    directories: list[_Directory] = [None, *broker.log_dirs[1:]]
    online = [each for each in directories if broker.is_online(each)]
    cordoned = state.cordoned_directories(broker)
    return [each for each in online if each not in cordoned] or online or [None]


def assign_replicas(
    state: ControllerState, broker: BrokerImage, command: AssignReplicasToDirs
) -> ControllerResult:
    """The replicas of a broker are in these log directories now: they were moved. What does not
    exist, and directories that are not registered, are skipped."""
    decisions = state.decisions()
    for topic_id, number, directory in command.replicas:
        before = state.image.partition(topic_id, number)
        if before is None or broker.broker_id not in before.replicas:
            continue
        if directory not in broker.log_dirs:
            continue
        wanted = None if directory == broker.log_dirs[0] else directory
        before = decisions.partition((topic_id, number))
        if before.directory_of(broker.broker_id) == wanted:
            continue
        others = [each for each in before.directories if each.broker_id != broker.broker_id]
        if wanted is not None:
            others.append(ReplicaDirectory(broker.broker_id, wanted))
        after = msgspec.structs.replace(
            before, directories=tuple(others), partition_epoch=before.partition_epoch + 1
        )
        # It may have been offline, and lead again.
        after = changed_partition(after, decisions.rules(topic_id)) or after
        decisions.put((topic_id, number), after)
    return ControllerResult(tuple(decisions.records), PartitionsReply(()))


def directory_losses(state: ControllerState, broker: BrokerImage) -> list[Record]:
    """The partition changes for the new registration of a running broker: its replicas in offline
    log directories leave their ISRs, unless they are the last members, and do not lead."""
    brokers = {**state.image.brokers, broker.broker_id: broker}
    decisions = state.decisions(image=msgspec.structs.replace(state.image, brokers=brokers))
    for topic_partition in state.index.in_sync_on(broker.broker_id):
        before = decisions.partition(topic_partition)
        if broker.is_online(before.directory_of(broker.broker_id)):
            continue
        in_sync = [replica for replica in before.in_sync_replicas if replica != broker.broker_id]
        rules = decisions.rules(topic_partition[0])
        decisions.put(topic_partition, changed_partition(before, rules, in_sync=in_sync))
    return decisions.records


def replace_lost_replicas(
    state: ControllerState, broker: BrokerImage, records: Sequence[Record]
) -> list[Record]:
    """`records` are the partition changes of a broker's new registration. The result has those for
    replicas in directories that are not registered any more, too: each starts anew in another
    directory, and has lost its records."""
    known = set(broker.log_dirs)
    former = state.image.brokers.get(broker.broker_id)
    if former is None or not known or known.issuperset(former.log_dirs):
        return list(records)
    is_first_lost = former.log_dirs[0] not in known
    decisions = state.decisions(without={broker.broker_id} if broker.is_fenced else frozenset())
    for record in records:
        if isinstance(record, PartitionChanged):
            decisions.put((record.topic_id, record.partition), record.state)
    others = [record for record in records if not isinstance(record, PartitionChanged)]
    placement = _Placement(state, {broker.broker_id: broker})
    for topic_id, topic in state.image.topics_by_id.items():
        for number in range(len(topic.partitions)):
            before = decisions.partition((topic_id, number))
            directory = before.directory_of(broker.broker_id)
            is_lost = is_first_lost if directory is None else directory not in known
            if not is_lost or broker.broker_id not in before.replicas:
                continue
            rules = decisions.rules(topic_id)
            after = changed_partition(before, rules, erased={broker.broker_id})
            if after is None:
                epoch = before.partition_epoch + 1
                after = msgspec.structs.replace(before, partition_epoch=epoch)
            decisions.put((topic_id, number), placement.moved(after, broker.broker_id))
    return [*others, *decisions.records]

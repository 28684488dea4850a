"""The rules for one partition when its ISR, its replicas or the brokers change.

Every change of an existing partition goes through `changed_partition`: fencing, shutdown, ISR
changes by leaders, reassignments, requested elections. It keeps these invariants:

- the ISR is a subset of the replicas, and the leader is in the ISR;
- the leader comes from the ISR, or from the eligible leader replicas if the feature is on
  (KIP-966), or is the last known leader if both are empty; any other replica needs an unclean
  election;
- a replica in an offline log directory does not lead (KIP-112);
- the partition epoch grows by one with each change; the leader epoch with each change of leader,
  also to none, and when a replica is removed, so that it cannot continue to follow.

A leader that was restarted without having been fenced goes on in a new epoch
(`with_next_leader_epoch`).

`PartitionChangeSet` collects the changes of one command.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import msgspec

from odradek.cluster.controller.partition_index import TopicIdPartition
from odradek.cluster.metadata.features import has_eligible_leader_replicas
from odradek.cluster.metadata.image import (
    NO_LEADER,
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from odradek.cluster.metadata.records import PartitionChanged, Record
from odradek.cluster.metadata.settings import topic_settings
from odradek.protocol.types import Uuid

_NO_BROKERS: Final[frozenset[int]] = frozenset()


class LeaderElection(Enum):
    """Which leader to elect."""

    ONLINE = "any"
    """The present leader if it can lead, else the first replica that can, by preference."""
    PREFERRED = "preferred"
    """The preferred leader if it is in sync; else as ONLINE."""
    UNCLEAN = "unclean"
    """As ONLINE, but if no replica can lead, any active one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """What holds for all partitions of one topic. `active` are the brokers that may lead,
    `shutting_down` those in controlled shutdown: they may continue to lead while no other member
    of the ISR can."""

    active: Set[int]
    min_insync_replicas: int
    is_unclean_allowed: bool
    has_elr: bool
    shutting_down: Set[int] = _NO_BROKERS
    with_offline_log_dirs: tuple[BrokerImage, ...] = ()
    """The brokers that cannot lead what is in their offline log directories (KIP-112)."""


def changed_partition(
    before: PartitionImage,
    rules: ElectionRules,
    *,
    in_sync: Sequence[int] | None = None,
    replicas: tuple[int, ...] | None = None,
    adding: tuple[int, ...] | None = None,
    removing: tuple[int, ...] | None = None,
    election: LeaderElection = LeaderElection.ONLINE,
    unclean_shutdown: Set[int] = _NO_BROKERS,
    erased: Set[int] = _NO_BROKERS,
) -> PartitionImage | None:
    """The partition after a change, or None if it stays as it is.

    `unclean_shutdown` are brokers whose logs may have lost records, `erased` those whose logs are
    lost: they leave the ISR and the eligible leaders. The ISR becomes empty only if there are
    eligible leader replicas, or its last member was erased. Otherwise it stays as it was, without a
    leader, until a member of it is active again.
    """
    if rules.with_offline_log_dirs:
        rules = _without_offline_replicas(before, rules)
    replicas = before.replicas if replicas is None else replicas
    adding = before.adding_replicas if adding is None else adding
    removing = before.removing_replicas if removing is None else removing
    isr = tuple(before.in_sync_replicas if in_sync is None else in_sync)
    gone = unclean_shutdown | erased
    if gone:
        isr = tuple(replica for replica in isr if replica not in gone)
    if (adding or removing) and is_reassignment_complete(isr, adding, removing):
        replicas = tuple(replica for replica in replicas if replica not in removing)
        isr = tuple(replica for replica in isr if replica not in removing)
        adding = removing = ()
    elr, last_known = _eligible_leaders(before, rules, replicas, isr, gone)
    leader = _elect(before, rules, replicas, isr, elr, last_known, election)
    if leader != NO_LEADER and leader not in isr:
        rest = {*elr, *isr} - {leader} if leader in elr else frozenset()
        last_known = last_known if leader in elr else ()
        isr, elr = (leader,), tuple(replica for replica in replicas if replica in rest)
    if has_min_isr(isr, rules, replicas):
        elr = last_known = ()
    if not isr:
        isr, last_known = _empty_isr(before, rules, replicas, last_known, erased)
    has_new_leader_epoch = leader != before.leader or not set(before.replicas) <= set(replicas)
    after = PartitionImage(
        replicas=replicas,
        in_sync_replicas=isr,
        leader=leader,
        leader_epoch=before.leader_epoch + has_new_leader_epoch,
        partition_epoch=before.partition_epoch,
        elr=elr,
        last_known_elr=last_known,
        adding_replicas=adding,
        removing_replicas=removing,
        directories=before.directories,
    )
    if after == before:
        return None
    return msgspec.structs.replace(after, partition_epoch=before.partition_epoch + 1)


def _without_offline_replicas(before: PartitionImage, rules: ElectionRules) -> ElectionRules:
    """The rules for a partition: a replica in an offline log directory cannot lead."""
    offline = {
        broker.broker_id
        for broker in rules.with_offline_log_dirs
        if not broker.is_online(before.directory_of(broker.broker_id))
    }
    return replace(
        rules, active=rules.active - offline, shutting_down=rules.shutting_down - offline
    )


def with_next_leader_epoch(before: PartitionImage) -> PartitionImage:
    """The partition when its leader continues in a new leader epoch."""
    return msgspec.structs.replace(
        before,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )


def is_reassignment_complete(
    in_sync: Collection[int], adding: Sequence[int], removing: Collection[int]
) -> bool:
    """Whether all added replicas are in sync, and one is that is not removed."""
    return all(replica in in_sync for replica in adding) and any(
        replica not in removing for replica in in_sync
    )


def has_min_isr(isr: Sequence[int], rules: ElectionRules, replicas: Sequence[int]) -> bool:
    """Whether an ISR satisfies min.insync.replicas, as far as there are replicas (KIP-966)."""
    return len(isr) >= min(rules.min_insync_replicas, len(replicas))


def _eligible_leaders(
    before: PartitionImage,
    rules: ElectionRules,
    replicas: Sequence[int],
    isr: Sequence[int],
    gone: Set[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The eligible leader replicas and the last known one beside an ISR (KIP-966).

    While the ISR is smaller than min.insync.replicas nothing more is committed: a replica that
    leaves it then has all committed records.
    """
    if not rules.has_elr or has_min_isr(isr, rules, replicas):
        return (), ()
    candidates = set(before.in_sync_replicas)
    if not has_min_isr(before.in_sync_replicas, rules, before.replicas):
        candidates.update(before.elr)
    candidates.difference_update(isr, gone)
    elr = tuple(replica for replica in replicas if replica in candidates)
    return elr, tuple(replica for replica in before.last_known_elr if replica in replicas)


def _empty_isr(
    before: PartitionImage,
    rules: ElectionRules,
    replicas: Collection[int],
    last_known: tuple[int, ...],
    erased: Set[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ISR and the last known leader to write when the ISR has become empty."""
    if rules.has_elr:
        if before.leader != NO_LEADER:
            last_known = (before.leader,)
        return (), tuple(replica for replica in last_known if replica not in erased)
    waiting = tuple(
        replica
        for replica in before.in_sync_replicas
        if replica in replicas and replica not in erased
    )
    return waiting, last_known


def _elect(
    before: PartitionImage,
    rules: ElectionRules,
    replicas: Sequence[int],
    isr: Sequence[int],
    elr: Sequence[int],
    last_known: Sequence[int],
    election: LeaderElection,
) -> int:
    active = rules.active
    if election is LeaderElection.PREFERRED and replicas[0] in isr and replicas[0] in active:
        return replicas[0]
    if before.leader in isr and before.leader in active:
        return before.leader
    for replica in replicas:
        if replica in isr and replica in active:
            return replica
    if before.leader in isr and before.leader in rules.shutting_down:
        return before.leader
    for replica in replicas:
        if replica in elr and replica in active:
            return replica
    if rules.has_elr and not isr and not elr and last_known and last_known[0] in active:
        # The last leader may have lost records, but no replica has more.
        return last_known[0]
    if rules.is_unclean_allowed or election is LeaderElection.UNCLEAN:
        for replica in replicas:
            if replica in active:
                return replica
    return NO_LEADER


class PartitionChangeSet:
    """The partitions that one command changes, each on top of what the command did to it before.

    `image` is what is decided upon, `active` the brokers that may lead once the command has been
    carried out, `shutting_down` those in controlled shutdown then; `node_id` and `static` lead to
    the configs of topics that have none themselves.
    """

    def __init__(
        self,
        image: MetadataImage,
        *,
        active: Set[int],
        node_id: int,
        static: Mapping[str, str],
        shutting_down: Set[int] = _NO_BROKERS,
    ) -> None:
        self._image = image
        self._node_id = node_id
        self._static = static
        self._rules: dict[Uuid, ElectionRules] = {}
        self._decided: dict[TopicIdPartition, PartitionImage] = {}
        self._shutting_down = shutting_down
        self._with_offline_log_dirs = tuple(
            broker for broker in image.brokers.values() if broker.offline_log_dirs
        )
        self.active = active

    @property
    def records(self) -> list[Record]:
        """The records of the changes, in the order in which partitions were first changed."""
        return [
            PartitionChanged(topic_id, partition, state)
            for (topic_id, partition), state in self._decided.items()
        ]

    def partition(self, topic_partition: TopicIdPartition) -> PartitionImage:
        """An existing partition, with the changes so far."""
        decided = self._decided.get(topic_partition)
        if decided is not None:
            return decided
        topic_id, number = topic_partition
        return self._image.topics_by_id[topic_id].partitions[number]

    def rules(self, topic_id: Uuid) -> ElectionRules:
        """The rules for the partitions of an existing topic."""
        rules = self._rules.get(topic_id)
        if rules is None:
            image = self._image
            name = image.topics_by_id[topic_id].name
            settings = topic_settings(image, self._node_id, self._static, name)
            rules = self._rules[topic_id] = ElectionRules(
                active=self.active,
                min_insync_replicas=settings.min_insync_replicas,
                is_unclean_allowed=settings.unclean_leader_election_enable,
                has_elr=has_eligible_leader_replicas(image),
                shutting_down=self._shutting_down,
                with_offline_log_dirs=self._with_offline_log_dirs,
            )
        return rules

    def put(self, topic_partition: TopicIdPartition, state: PartitionImage | None) -> None:
        """Set a partition's new state; None leaves it as it is."""
        if state is not None:
            self._decided[topic_partition] = state

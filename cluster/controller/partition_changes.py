"""What becomes of one partition when its ISR, its replicas or the brokers change: the rules.

Every change of a partition that exists goes through `changed_partition`: fencing, shutdown, ISR
changes by leaders, reassignment, elections that were asked for. It keeps what must hold always:

- the ISR is a part of the replicas, and a leader is in the ISR;
- a leader comes from the ISR, or from the eligible leader replicas where the feature is on
  (KIP-966), or is the last known leader where both are empty; from elsewhere only where an unclean
  election is allowed;
- the partition epoch grows by one with each change; the leader epoch with each change of leader,
  also to none, and when a replica is taken away, so that it cannot go on following unnoticed.

`PartitionChangeSet` collects the changes of one command.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from odradek.cluster.controller.partition_index import TopicIdPartition
from odradek.cluster.metadata.features import has_eligible_leader_replicas
from odradek.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged, Record
from odradek.cluster.metadata.settings import topic_settings
from odradek.protocol.types import Uuid

_NO_BROKERS: Final[frozenset[int]] = frozenset()


class LeaderElection(Enum):
    """Whom to look for."""

    ONLINE = "any"
    """The leader stays if it may; else the first that may lead, in the order of preference."""
    PREFERRED = "preferred"
    """The preferred leader if it is in sync; else as before."""
    UNCLEAN = "unclean"
    """As ANY, but if nobody may lead, anybody who is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """What holds for all partitions of one topic. `active` are the brokers that may lead,
    `shutting_down` those in controlled shutdown: they may go on leading while nobody else in the
    ISR can."""

    active: Set[int]
    min_insync_replicas: int
    is_unclean_allowed: bool
    has_elr: bool
    shutting_down: Set[int] = _NO_BROKERS


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
    """The partition with what is given changed, or None if that changes nothing.

    `unclean_shutdown` are brokers whose logs may miss their ends, `erased` those whose logs are
    gone: none of them keeps a place in the ISR or among the eligible leaders. An ISR that becomes
    empty is only written so where there are eligible leader replicas or the last of it was erased;
    otherwise the old one stays without a leader, until one of it is back.
    """
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
        if leader in elr:
            rest = {*elr, *isr} - {leader}
            isr = (leader,)
            elr = tuple(replica for replica in replicas if replica in rest)
        else:
            isr, elr = (leader,), ()
            last_known = ()
    if has_min_isr(isr, rules, replicas):
        elr = last_known = ()
    if not isr:
        isr, last_known = _empty_isr(before, rules, replicas, last_known, erased)
    has_new_leader_epoch = leader != before.leader or not set(before.replicas) <= set(replicas)
    if not has_new_leader_epoch and (isr, replicas, adding, removing, elr, last_known) == (
        before.in_sync_replicas,
        before.replicas,
        before.adding_replicas,
        before.removing_replicas,
        before.elr,
        before.last_known_elr,
    ):
        return None
    return PartitionImage(
        replicas=replicas,
        in_sync_replicas=isr,
        leader=leader,
        leader_epoch=before.leader_epoch + has_new_leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        elr=elr,
        last_known_elr=last_known,
        adding_replicas=adding,
        removing_replicas=removing,
    )


def is_reassignment_complete(
    in_sync: Collection[int], adding: Sequence[int], removing: Collection[int]
) -> bool:
    """Whether all that are added are in sync, and somebody is once the others are taken away."""
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

    While the ISR is smaller than min.insync.replicas nothing is committed any more, so that who
    leaves it then has everything that is.
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
    """The ISR and the last known leader to write where the ISR has become empty."""
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
        # The last leader lost the end of its log perhaps, but nobody has more.
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

    __slots__ = ("_decided", "_image", "_node_id", "_rules", "_shutting_down", "_static", "active")

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
        self.active = active

    @property
    def records(self) -> list[Record]:
        """What makes the changes so, in the order in which partitions were first changed."""
        return [
            PartitionChanged(topic_id, partition, state)
            for (topic_id, partition), state in self._decided.items()
        ]

    def partition(self, topic_partition: TopicIdPartition) -> PartitionImage:
        """A partition that exists, as it will be."""
        decided = self._decided.get(topic_partition)
        if decided is not None:
            return decided
        topic_id, number = topic_partition
        return self._image.topics_by_id[topic_id].partitions[number]

    def rules(self, topic_id: Uuid) -> ElectionRules:
        """What holds for the partitions of a topic that exists."""
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
            )
        return rules

    def put(self, topic_partition: TopicIdPartition, state: PartitionImage | None) -> None:
        """Decide a partition's new state; None leaves it as it is."""
        if state is not None:
            self._decided[topic_partition] = state

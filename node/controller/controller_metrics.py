"""What a controller's metrics are read from: the quorum, and at the active controller the cluster.

The families are declared in node/metrics/families.py. Called by process.py.
"""

from collections.abc import Callable

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.metrics.registry import Metrics

_NO_NODE = -1


def register_quorum_metrics(metrics: Metrics, driver: RaftDriver) -> None:
    """This member of the quorum, as it sees itself."""
    read = metrics.read
    read("odradek_raft_term", lambda: driver.node.term)
    read(
        "odradek_raft_leader_id",
        lambda: _NO_NODE if driver.node.leader_id is None else driver.node.leader_id,
    )
    read("odradek_raft_elections_total", lambda: driver.node.election_count)
    read("odradek_raft_last_index", lambda: driver.node.log.last_index)
    read("odradek_raft_committed_index", lambda: driver.node.log.committed_index)
    read("odradek_raft_applied_index", lambda: driver.node.log.applied_index)
    read("odradek_raft_is_leader", lambda: driver.is_leader)
    read(
        "odradek_raft_is_voter",
        lambda: driver.node.configuration.is_voter(driver.node.own_id),
    )


class ClusterMetrics:
    """The cluster, as `image` returns it. While `is_active` is False there are no series: each
    cluster has them once."""

    def __init__(self, image: Callable[[], MetadataImage], is_active: Callable[[], bool]) -> None:
        self._image = image
        self._is_active = is_active
        self._counted_topics: object = None
        self._topics: dict[str, float] = {}
        self._offline: dict[str, float] = {}

    def register(self, metrics: Metrics) -> None:
        """Have the families of the cluster read."""
        metrics.read("odradek_brokers", self._brokers)
        metrics.read("odradek_topics", lambda: self._topics if self._count() else {})
        metrics.read("odradek_offline_partitions", lambda: self._offline if self._count() else {})

    def _brokers(self) -> dict[str, float]:
        if not self._is_active():
            return {}
        brokers = self._image().brokers.values()
        fenced = sum(broker.is_fenced for broker in brokers)
        return {"active": len(brokers) - fenced, "fenced": fenced}

    def _count(self) -> bool:
        """Count the topics, if they have changed: there may be 100,000 partitions. Whether there
        are series."""
        if not self._is_active():
            return False
        topics = self._image().topics_by_name
        if topics is not self._counted_topics:
            self._counted_topics = topics
            self._topics = {"user": 0, "internal": 0}
            self._offline = dict(self._topics)
            for topic in topics.values():
                scope = "internal" if topic.name in INTERNAL_TOPICS else "user"
                self._topics[scope] += 1
                self._offline[scope] += sum(each.leader == NO_LEADER for each in topic.partitions)
        return True

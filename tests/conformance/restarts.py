"""Restarts the nodes under test in turn, as an upgrade does, for as long as conformance tests run.

A node is stopped with SIGTERM and started again; the next one has its turn when every replica is in
sync again and the preferred replicas lead, so that each restart finds leaders and coordinators to
move.
"""

import itertools
import threading
from types import TracebackType
from typing import Final, Self

from odradek.protocol.messages.cluster import ElectLeadersRequest
from odradek.protocol.messages.metadata import MetadataRequest
from tests.e2e.cluster import Cluster
from tests.support.waiting import wait_until

PAUSE_S: Final = 1.0
"""Between two restarts: tests need moments in which nothing moves, too."""
IN_SYNC_WITHIN_S: Final = 60.0


class Restarts:
    """A thread that restarts nodes; a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="restarts")
        self.count = 0
        self.failure: Exception | None = None
        """What went wrong: a node that did not stop or start in time, replicas that were not in
        sync again."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for node_id in itertools.cycle(self._cluster.nodes):
                if self._is_over.wait(PAUSE_S):
                    return
                self._cluster[node_id].restart()
                self.count += 1
                wait_until(
                    lambda: self._is_over.is_set() or self._is_whole(),
                    timeout_s=IN_SYNC_WITHIN_S,
                    what=f"all replicas are in sync after a restart of node {node_id}",
                )
                preferred = ElectLeadersRequest(election_type=0, topic_partitions=None)
                self._cluster[node_id].ask(preferred)
        except Exception as error:
            self.failure = error

    def _is_whole(self) -> bool:
        """Whether every replica of every topic is in sync, as each node knows it."""
        return all(
            set(partition.isr_nodes) == set(partition.replica_nodes)
            for node in self._cluster.nodes.values()
            for topic in node.ask(MetadataRequest(topics=None)).topics
            for partition in topic.partitions
        )

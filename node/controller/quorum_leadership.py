"""When this node becomes the active controller, and when it ceases to be it.

    event                                         follows
    ---------------------------------------------------------------------------------------------
    our first entry in our term is applied        an ActiveController; bootstrap of a new cluster
    another leader, or another term               it is dropped, with what is not committed
    the disk has no space for a command           this node resigns: another disk may have space
    the node is to stop                           leadership is transferred to another node

Called by the controller's process and, for applied entries, by its metadata loader.
"""

from collections.abc import Callable

from odradek.cluster.controller.state import is_active
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.raft.configuration import node_id_of
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Role, SoftState
from odradek.node.config import NodeConfig
from odradek.node.controller.active_controller import (
    ActiveController,
    NoDiskSpaceError,
    NotProposedError,
)
from odradek.node.controller.bootstrap import bootstrap_records
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.peer_directory import PeerDirectory
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.controller.voter_changes import pending_voter_update
from odradek.node.structured_log import get_logger
from odradek.storage.metadata_log import MetadataLog

log = get_logger(__name__)

_RESIGN_AGAIN_MS = 10_000
"""Between two resignations for lack of disk space: all disks may be full."""
_TRANSFER_AGAIN_MS = 1_000
"""Between two attempts of a stopping node to transfer leadership."""


class QuorumLeadership:
    """See the module's docstring. `active` is None unless this node is the active controller.
    Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        config: NodeConfig,
        metadata_log: MetadataLog,
        driver: RaftDriver,
        *,
        directory: PeerDirectory,
        forwarding: CommandForwarding,
        failure_detector: FailureDetector,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.active: ActiveController | None = None
        self._config = config
        self._log = metadata_log
        self._driver = driver
        self._directory = directory
        self._forwarding = forwarding
        self._failure_detector = failure_detector
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._has_vote = True
        self._must_resign = False
        self._resign_again_ms = 0
        self._transfer_again_ms = 0

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self.active is None else self.active.controller.next_deadline_ms()

    def tick(self, now_ms: int) -> None:
        """Have the active controller propose what is due."""
        active = self.active
        if active is None:
            return
        try:
            active.tick(now_ms, self._wall_ms())
        except (NoDiskSpaceError, NotProposedError) as error:
            log.warning("fencing and preferred leader elections are delayed", reason=repr(error))
            active.controller.activate(now_ms)
        if self._directory.has_news:
            update = pending_voter_update(self._driver.node.configuration, self._directory.headers)
            if update is None:
                self._directory.has_news = False
            else:
                active.change_membership(update)  # A refused update is repeated in the next turn.

    def on_soft_state(self, state: SoftState) -> None:
        """The leader, the term or this member's role has changed."""
        active = self.active
        if active is not None and (state.role is not Role.LEADER or state.term != active.term):
            self.active = None
        self._failure_detector.set_leader(state.leader_id)
        if self._config.is_clustered:
            leader = None if state.leader_id is None else node_id_of(state.leader_id)
            log.info(
                "the state of this node in the quorum has changed",
                role=str(state.role),
                term=state.term,
                leader=leader,
            )
            self._warn_of_lost_vote()
        self._forwarding.set_leader(state.leader_id, self.active, self._clock_ms())

    def follow(self, config: NodeConfig) -> None:
        """The configuration of this node has changed while it runs."""
        self._config = config
        if self.active is not None:
            self.active.controller.set_static(config.broker_configs)

    def on_configuration(self) -> None:
        """The voters have changed, or were read from a snapshot."""
        self._directory.update_voters(self._driver.node.configuration)
        self._warn_of_lost_vote()

    def _warn_of_lost_vote(self) -> None:
        node = self._driver.node
        if not node.configuration.voters or node.leader_id is None:
            return
        had_vote, self._has_vote = self._has_vote, node.configuration.is_voter(node.own_id)
        if had_vote and not self._has_vote:
            log.warning(
                "this node is an observer of the quorum",
                action=f"to make it a voter: odradek node add {self._config.node_id}",
            )

    def on_applied(self, entry: Entry, image: MetadataImage) -> None:
        """An entry was applied, and this is the image after it. Become the active controller if it
        is of our term and the last of the log: then the image has everything that is decided."""
        node, config = self._driver.node, self._config
        if self.active is not None or entry.term != node.term or not self._driver.is_leader:
            return
        if node.log.last_index != image.offset:
            return
        active = ActiveController(
            self._driver,
            image,
            term=node.term,
            node_id=config.node_id,
            static=config.broker_configs,
            has_space=self._has_space,
            headers=self._directory,
        )
        now_ms = self._clock_ms()
        self._directory.has_news = True
        if not image.cluster_id:
            active.propose(bootstrap_records(config), frees_space=True)
        if config.is_clustered:
            active.controller.activate(now_ms)
            for broker_id, since_ms in self._failure_detector.suspects(now_ms):
                active.controller.suspect(broker_id, since_ms)
        self.active = active
        self._forwarding.set_leader(node.own_id, active, now_ms)

    def suspect(self, broker_id: int, since_ms: int) -> None:
        """The controller process of that node has ended."""
        if self.active is not None:
            self.active.controller.suspect(broker_id, since_ms)

    def transfer(self, image: MetadataImage, now_ms: int) -> None:
        """This node is to stop: transfer leadership to an active node."""
        if not self._driver.is_leader or now_ms < self._transfer_again_ms:
            return
        self._transfer_again_ms = now_ms + _TRANSFER_AGAIN_MS
        staying = {b.broker_id for b in image.brokers.values() if is_active(b)}
        voters = self._driver.node.configuration.voter_ids
        successor = self._driver.transfer_leadership(
            [voter for voter in voters if node_id_of(voter) in staying]
        )
        if successor is not None:
            log.info("a node is asked to lead the quorum", peer_node=node_id_of(successor))

    def resign_if_full(self) -> None:
        """Resign if a command found no disk space since the last call."""
        if self._must_resign:
            self._must_resign = False
            self._driver.resign()

    def _has_space(self, byte_count: int) -> bool:
        has_space = self._log.has_space_for(byte_count)
        now_ms = self._clock_ms()
        if not has_space and self._config.is_clustered and now_ms >= self._resign_again_ms:
            log.error("disk full: this node resigns as active controller", action="free space")
            self._resign_again_ms = now_ms + _RESIGN_AGAIN_MS
            self._must_resign = True
        return has_space

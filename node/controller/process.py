"""The controller's process: one member of the quorum, and the metadata of this node's processes.

A turn: take in what has arrived (commands, peers' messages, the end of a write), decide every
command if this node is the active controller, have the Raft driver persist, send and apply,
publish what is committed to the processes of this node, and answer a command once all of them have
applied it. What is not committed is never published. If a write fails, the process exits; the next
one reads the state from the log. A single node is a quorum of one and elects itself. Started as
`python -m odradek.node.controller.process CONFIG`.
"""

import gc
import os
import random
import sys
import time
from pathlib import Path

import msgspec
import zmq

from odradek.cluster.metadata.features import UnsupportedFeatureLevelError
from odradek.cluster.metadata.image import ConfigsImage, MetadataImage
from odradek.cluster.metadata.records import (
    BrokerChanged,
    ConfigChanged,
    TopicDeleted,
    decode_records,
)
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.bus.endpoint import drain_with_identity, ipc_address
from odradek.node.bus.messages import (
    DescribeQuorum,
    LivenessReply,
    MetadataApplied,
    NodesUnreachable,
    SubmitCommand,
    SubscribeMetadata,
    ToController,
)
from odradek.node.bus.peer_messages import PeerHeader, PeerRejected
from odradek.node.config import NodeConfig
from odradek.node.controller.bootstrap import registered_config
from odradek.node.controller.bootstrap_voters import drop_bootstrap_voters, quorum_identity
from odradek.node.controller.broker_lifecycle import BrokerLifecycle, incarnation_of
from odradek.node.controller.clean_shutdown import (
    boot_id,
    previous_broker_epoch,
    record_interval_durability,
    record_run,
)
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.controller_metrics import ClusterMetrics, register_quorum_metrics
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.metadata_loader import MetadataLoader, image_of_snapshot
from odradek.node.controller.metadata_publisher import MetadataPublisher
from odradek.node.controller.node_readiness import NodeReadiness, node_processes
from odradek.node.controller.peer_directory import PeerDirectory
from odradek.node.controller.peer_dispatch import PeerDispatch
from odradek.node.controller.process_liveness import TIMEOUT_SESSIONS, ProcessLiveness
from odradek.node.controller.quorum_leadership import QuorumLeadership
from odradek.node.controller.quorum_view import QuorumView
from odradek.node.controller.raft_driver import RaftDriver, RaftListener
from odradek.node.controller.voter_changes import peer_refusal
from odradek.node.observability import SupervisorLink
from odradek.node.storage_health import StorageHealth
from odradek.node.structured_log import configure_logging, finish_logging, get_logger
from odradek.storage.metadata_log import MetadataLog, MetadataLogError
from odradek.storage.settings import Durability

# Its __name__ is "__main__".
log = get_logger("odradek.node.controller.process")

_IDLE_POLL_MS = 1_000
_DISK_CHECK_MS = 1_000
_GC_THRESHOLDS = (10_000, 10, 1_000)
"""Of the three generations. The metadata of 100,000 topics are a million objects: to collect all
generations takes a tenth of a second, and commands leave next to nothing to collect."""


class ControllerProcess:
    """See the module's docstring."""

    def __init__(self, config: NodeConfig, supervisor: SupervisorLink) -> None:
        self._config = config
        self._supervisor = supervisor
        self._poller = zmq.Poller()
        self._health = StorageHealth(supervisor.send)
        self._disk_check_ms = 0
        self._configs: ConfigsImage | None = None
        """Whose listeners are registered."""
        self._log = MetadataLog.open(config.metadata_folder)
        image = _load_image(self._log)
        self._wire_quorum()
        self._wire_node(image)
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._register_metrics()
        supervisor.on_configuration = self._on_configuration
        self._poller.register(self._publisher.socket, zmq.POLLIN)
        self._poller.register(self._driver.fileno(), zmq.POLLIN)
        for socket in supervisor.sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._directory.update_voters(self._driver.node.configuration)

    def _wire_quorum(self) -> None:
        """The member of the quorum and what it does when it leads."""
        identity = quorum_identity(self._log, self._config)
        self._directory = directory = PeerDirectory(
            self._config, identity.own_id, refuses=self._peer_refusal, watch=self._watch
        )
        self._driver = RaftDriver(
            self._log,
            own_id=identity.own_id,
            voter_ids=identity.voter_ids,
            send=lambda message: directory.send(message.to, message),
            jitter_ms=lambda: random.randint(0, RaftSettings().election_timeout_ms),
            now_ms=_clock_ms(),
            may_use_reserve=_frees_space,
        )
        self._forwarding = CommandForwarding(
            own_id=identity.own_id,
            send=directory.send,
            respond=lambda identity, submitted: self._publisher.send(identity, [submitted]),
        )
        self._failure_detector = FailureDetector(self._driver, identity.own_id)
        self._leadership = QuorumLeadership(
            self._config,
            self._log,
            self._driver,
            directory=directory,
            forwarding=self._forwarding,
            failure_detector=self._failure_detector,
            clock_ms=_clock_ms,
            wall_ms=_wall_ms,
        )
        self._quorum = QuorumView(
            self._driver,
            send=directory.send,
            respond=lambda identity, answer: self._publisher.send(identity, [answer]),
            wall_ms=_wall_ms,
            headers=directory,
        )
        self._peer_dispatch = PeerDispatch(
            self._config,
            directory,
            self._driver,
            self._forwarding,
            self._quorum,
            self._failure_detector,
            report_unreachable=lambda nodes: self._publisher.broadcast(NodesUnreachable(nodes)),
            suspect=self._leadership.suspect,
        )

    def _wire_node(self, image: MetadataImage) -> None:
        """The image, the processes that get it, and this node's registration as a broker."""
        config = self._config
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        settings = broker_settings(image, config.node_id, config.broker_configs)
        self._publisher = MetadataPublisher(
            context,
            ipc_address(config.run_folder, "controller"),
            self._driver,
            sets_back=not config.is_clustered,
            liveness=ProcessLiveness(
                node_processes(config, config.worker_count) if config.is_clustered else (),
                timeout_ms=TIMEOUT_SESSIONS * settings.broker_session_timeout_ms,
            ),
        )
        self._loader = MetadataLoader(
            image, self._driver, self._publisher, self._leadership, self._follow_durability
        )
        self._durability = Durability(settings.durability)
        """The weakest one that this run has had, from the start on: the image is that of the
        newest snapshot still, and workers may serve with it."""
        self._listener = RaftListener(
            on_commit=self._loader.on_commit,
            on_snapshot=self._loader.on_snapshot,
            on_soft_state=self._leadership.on_soft_state,
            on_discard=self._forwarding.discard_after,
        )
        self._lifecycle = BrokerLifecycle(
            registered_config(config, image),
            incarnation_of(config),
            lambda command, timeout_ms, answer: self._forwarding.submit_internal(
                command, _clock_ms() + timeout_ms, answer, _clock_ms()
            ),
            previous_broker_epoch=previous_broker_epoch(
                config.data_folder, boot_id(), config.durability
            ),
            on_registered=lambda epoch: record_run(
                config.data_folder, epoch, boot_id(), self._durability
            ),
        )
        self._readiness = NodeReadiness(
            config, self._supervisor, lifecycle=self._lifecycle, publisher=self._publisher
        )

    def _follow_durability(self, image: MetadataImage) -> None:
        """The processes will have these configs: what a power loss may take is recorded before."""
        settings = broker_settings(image, self._config.node_id, self._config.broker_configs)
        if self._durability is Durability.COMMIT and settings.durability != Durability.COMMIT:
            self._durability = Durability.INTERVAL
            record_interval_durability(self._config.data_folder)

    def _register_metrics(self) -> None:
        read, driver = self._supervisor.metrics.read, self._driver
        read("odradek_metadata_offset", lambda: self._loader.image.offset)
        register_quorum_metrics(self._supervisor.metrics, driver)
        ClusterMetrics(lambda: self._loader.image, lambda: driver.is_leader).register(
            self._supervisor.metrics
        )
        read("odradek_commands_pending", lambda: len(self._forwarding))
        peers = self._directory.bus
        if peers is not None:
            read(
                "odradek_peer_messages_lost_total",
                lambda: {"dropped": peers.dropped_count, "refused": peers.refused_count},
            )
            read("odradek_cluster_secrets", lambda: len(self._config.cluster_secrets))
            read(
                "odradek_peers_with_other_secrets",
                lambda: self._directory.other_secrets_count,
            )

    def _on_configuration(self, config: NodeConfig) -> None:
        """The node's configuration has changed while it runs."""
        self._config = config
        self._follow_durability(self._loader.image)
        self._directory.change_secrets(config)
        self._leadership.follow(config)
        self._lifecycle.follow(registered_config(config, self._loader.image))
        self._readiness.follow(config)

    def run(self) -> None:
        """Serve until the supervisor stops the process."""
        self._check_disk()
        self._health.report()
        self._turn(waits=True)
        while not self._supervisor.poll():
            ready = dict(self._poller.poll(self._timeout_ms()))
            if self._supervisor.is_in_controlled_shutdown:
                # Controlled shutdown: other nodes lead the quorum first, then the partitions.
                self._lifecycle.begin_controlled_shutdown(_clock_ms())
                self._leadership.transfer(self._loader.image, _clock_ms())
            self._receive()
            self._check_disk()
            if not ready and self._driver.is_idle:
                self._log.refill_reserve()
            self._turn()
        self._close()

    def _check_disk(self) -> None:
        now_ms = _clock_ms()
        if now_ms >= self._disk_check_ms:
            self._disk_check_ms = now_ms + _DISK_CHECK_MS
            problem = self._log.disk_problem(was_full=bool(self._health.problem))
            self._health.set_problem("metadata", problem)

    def _timeout_ms(self) -> int:
        if self._supervisor.is_busy:
            return 1
        now_ms = _clock_ms()
        parts = (
            self._driver,
            self._forwarding,
            self._lifecycle,
            self._quorum,
            self._failure_detector,
            self._publisher,
            self._leadership,
        )
        deadlines = (part.next_deadline_ms() for part in parts)
        due_ms = min((due for due in deadlines if due is not None), default=now_ms + _IDLE_POLL_MS)
        return max(0, min(_IDLE_POLL_MS, due_ms - now_ms))

    def _close(self) -> None:
        self._driver.resign()
        self._driver.process_ready(self._listener)
        peers = self._directory.bus
        if peers is not None:
            peers.flush()
            peers.close()
        self._driver.close()
        self._log.close()

    # -- a turn ------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take in the messages of this node's processes and of the peers."""
        now_ms = _clock_ms()
        self._driver.tick(now_ms)
        for identity, payload in drain_with_identity(self._publisher.socket):
            for message in self._decode(payload):
                if type(message) is SubmitCommand:
                    self._forwarding.submit(identity, message, now_ms)
                elif type(message) is MetadataApplied:
                    self._publisher.applied(identity, message)
                elif type(message) is SubscribeMetadata:
                    self._publisher.subscribe(identity, message, self._loader.image)
                elif type(message) is LivenessReply:
                    self._publisher.liveness.on_response(message.process)
                elif type(message) is DescribeQuorum:
                    self._quorum.describe(identity, message.request_id, now_ms)
        self._peer_dispatch.dispatch(self._loader.image.brokers, now_ms)
        if self._peer_dispatch.is_replaced and self._driver.is_idle:
            self._restart_as_observer()

    def _turn(self, *, waits: bool = False) -> None:
        """Persist, send, apply, publish, answer: until nothing more follows from it."""
        if waits:
            self._driver.tick(_clock_ms())
        self._leadership.tick(_clock_ms())
        is_busy = True
        while is_busy:
            is_reported = self._driver.process_ready(self._listener, waits=waits)
            now_ms, image = _clock_ms(), self._loader.image
            if image.configs is not self._configs:
                self._configs = image.configs
                self._lifecycle.follow(registered_config(self._config, image))
            self._readiness.tick(image, now_ms)
            self._forwarding.answer(
                now_ms, committed=image.offset, applied=self._publisher.applied_offset(image)
            )
            self._quorum.settle(now_ms)
            self._readiness.serve(image)
            self._leadership.resign_if_full()
            # What was proposed meanwhile is sent before the next poll.
            is_busy = is_reported or self._driver.has_work
        if self._directory.bus is not None:
            self._directory.bus.flush()
        self._loader.snapshot_if_due()

    # -- peers -------------------------------------------------------------------------------------

    def _watch(self, socket: "zmq.Socket[bytes]", is_new: bool) -> None:
        if is_new:
            self._poller.register(socket, zmq.POLLIN)
        else:
            self._poller.unregister(socket)

    def _peer_refusal(self, header: PeerHeader) -> PeerRejected | None:
        raft_log = self._driver.node.log
        return peer_refusal(
            header,
            raft_log.configuration_at(raft_log.committed_index),
            is_recorded=raft_log.is_configuration_recorded,
            brokers=self._loader.image.brokers,
        )

    def _restart_as_observer(self) -> None:
        drop_bootstrap_voters(self._log)
        log.warning("this node restarts as an observer without a vote; the reason is logged above")
        self._close()
        raise SystemExit(0)


def _load_image(metadata_log: MetadataLog) -> MetadataImage:
    snapshot = metadata_log.snapshot
    if snapshot is None:
        return MetadataImage.empty()
    return image_of_snapshot(metadata_log.snapshot_content(), snapshot.index)


def _frees_space(entry: Entry) -> bool:
    """Whether a received entry may be written to the space reserved for a full disk."""
    if not entry.is_command:
        return True
    records = decode_records(entry.data)
    return any(isinstance(r, TopicDeleted | ConfigChanged | BrokerChanged) for r in records)


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    path = Path(sys.argv[1])
    configure_logging(NodeConfig.load_json(path), "controller")
    exit_code = 0
    link = SupervisorLink.connect("controller", path)
    link.wait_for_turn()
    config = NodeConfig.load_json(path)
    # The modules are never garbage.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with link as supervisor:
        try:
            ControllerProcess(config, supervisor).run()
        except MetadataLogError as error:
            # The state is that of the log, which has to be read again. The supervisor logs this.
            StorageHealth(supervisor.send).set_problem("metadata", str(error))
            exit_code = 1
        except UnsupportedFeatureLevelError as error:
            log.critical("this node cannot follow the metadata of the cluster", reason=str(error))
            exit_code = 1
    finish_logging()
    os._exit(exit_code)


if __name__ == "__main__":
    main()

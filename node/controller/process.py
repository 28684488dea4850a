"""The controller's process: one member of the quorum, and what this node's processes hear of it.

Order of duties in a turn: take in what has arrived (commands, what peers say, what the disk has
done), decide every command if this member is the active controller, let the driver persist, send
and hand out what is committed, publish that to the processes of this node, and answer a command
once every process that follows has carried its records out. What is not committed is never
published; if persisting fails the process exits, and its successor reads what is true from the log.
A node on its own is a quorum of one and elects itself. Started as `python -m
node.controller.process CONFIG`.
"""

import logging
import os
import random
import sys
import time
from pathlib import Path

import msgspec
import zmq

from odradek.cluster.controller.state import is_active
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import (
    BrokerChanged,
    ConfigChanged,
    TopicDeleted,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.configuration import node_id_of
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Role, SoftState
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
from odradek.node.controller.active_controller import (
    ActiveController,
    NoDiskSpaceError,
    NotProposedError,
)
from odradek.node.controller.bootstrap import bootstrap_records, min_insync_warning
from odradek.node.controller.bootstrap_voters import drop_bootstrap_voters, quorum_identity
from odradek.node.controller.broker_lifecycle import BrokerLifecycle, incarnation_of
from odradek.node.controller.clean_shutdown import boot_id, previous_broker_epoch, record_run
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.metadata_publisher import MetadataPublisher
from odradek.node.controller.peer_directory import PeerDirectory
from odradek.node.controller.peer_dispatch import PeerDispatch
from odradek.node.controller.process_liveness import PATIENCE_SESSIONS, ProcessLiveness
from odradek.node.controller.quorum_view import QuorumView
from odradek.node.controller.raft_driver import (
    EntriesCommitted,
    EntriesDiscarded,
    Event,
    RaftDriver,
    SnapshotInstalled,
    SoftStateChanged,
)
from odradek.node.controller.voter_changes import peer_refusal, pending_voter_update
from odradek.node.observability import SupervisorLink, configure_logging
from odradek.storage.metadata_log import MetadataLog

log = logging.getLogger(__name__)

SNAPSHOT_ENTRIES = 20_000
"""Entries after which the log is replaced by a snapshot of the image."""
_IDLE_POLL_MS = 1_000
_RESIGN_AGAIN_MS = 10_000
"""After having stood back for lack of room. All disks may be full; then it is of no use."""
_HAND_OVER_AGAIN_MS = 1_000
"""After which a node that wants to stop and still leads the quorum asks again that another does."""


class ControllerProcess:
    """See the module's docstring."""

    def __init__(self, config: NodeConfig, supervisor: SupervisorLink) -> None:
        self._config = config
        self._supervisor = supervisor
        self._log = MetadataLog.open(config.metadata_folder)
        part = quorum_identity(self._log, config)
        self._own_id = part.own_id
        self._image = self._load_snapshot()
        self._snapshot_index = self._published = self._image.offset
        self._active: ActiveController | None = None
        self._is_ready = False
        self._is_complete = False
        self._is_resigning = False
        self._resign_again_ms = 0
        self._hand_over_ms = 0
        self._has_released = False
        self._configs_heeded: object = None
        self._worker_count = config.worker_count
        incarnation = incarnation_of(config)
        self._poller = zmq.Poller()
        self._peer_directory = PeerDirectory(
            config, part.own_id, refuses=self._why_refused, watch=self._watch
        )
        self._peers = self._peer_directory.bus
        self._driver = RaftDriver(
            self._log,
            own_id=part.own_id,
            voter_ids=part.voter_ids,
            send=lambda message: self._peer_directory.send(message.to, message),
            jitter_ms=lambda: random.randint(0, RaftSettings().election_timeout_ms),
            now_ms=_clock_ms(),
            may_use_reserve=_gives_room,
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._expected = _processes(config, config.worker_count)
        session_ms = broker_settings(
            self._image, config.node_id, config.broker_configs
        ).broker_session_timeout_ms
        self._publisher = MetadataPublisher(
            self._context,
            ipc_address(config.run_folder, "controller"),
            self._driver,
            sets_back=not config.is_clustered,
            liveness=ProcessLiveness(
                self._expected if config.is_clustered else (),
                patience_ms=PATIENCE_SESSIONS * session_ms,
            ),
        )
        self._forwarding = CommandForwarding(
            own_id=part.own_id,
            send=self._peer_directory.send,
            tell=lambda identity, submitted: self._publisher.send(identity, [submitted]),
        )
        self._quorum = QuorumView(
            self._driver,
            send=self._peer_directory.send,
            tell=lambda identity, answer: self._publisher.send(identity, [answer]),
            wall_ms=_wall_ms,
            headers=self._peer_directory,
        )
        self._failure_detector = FailureDetector(self._driver, part.own_id)
        self._peer_dispatch = PeerDispatch(
            config,
            self._peer_directory,
            self._driver,
            self._forwarding,
            self._quorum,
            self._failure_detector,
            tell=lambda nodes: self._publisher.tell(NodesUnreachable(nodes)),
            suspect=self._suspect,
        )
        self._lifecycle = BrokerLifecycle(
            config,
            incarnation,
            lambda command, timeout_ms, answer: self._forwarding.submit_internal(
                command, _clock_ms() + timeout_ms, answer, _clock_ms()
            ),
            previous_broker_epoch=previous_broker_epoch(
                config.data_folder, boot_id(), config.durability
            ),
            on_registered=lambda epoch: record_run(config.data_folder, epoch, boot_id()),
        )
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._register_metrics()
        self._poller.register(self._publisher.socket, zmq.POLLIN)
        self._poller.register(self._driver.fileno(), zmq.POLLIN)
        for socket in supervisor.sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._peer_directory.follow(self._driver.node.configuration)

    @property
    def image(self) -> MetadataImage:
        """The committed metadata; its offset counts the entries of the log."""
        return self._image

    def run(self) -> None:
        """Serve until the supervisor says stop."""
        self._carry_on(waits=True)
        while not self._supervisor.poll():
            ready = dict(self._poller.poll(self._timeout_ms()))
            if self._supervisor.is_leaving:
                self._leave_in_order(_clock_ms())
            self._hear()
            if not ready and self._driver.is_idle:
                self._log.refill_reserve()
            self._carry_on()
        self._leave()

    def _timeout_ms(self) -> int:
        now_ms = _clock_ms()
        deadlines = [
            self._driver.next_deadline_ms(),
            self._forwarding.next_deadline_ms(),
            self._lifecycle.next_deadline_ms(),
            self._quorum.next_deadline_ms(),
            self._peer_dispatch.next_deadline_ms(),
            self._publisher.next_deadline_ms(),
            None if self._active is None else self._active.controller.next_deadline_ms(),
        ]
        due_ms = min((due for due in deadlines if due is not None), default=now_ms + _IDLE_POLL_MS)
        return max(0, min(_IDLE_POLL_MS, due_ms - now_ms))

    def _leave_in_order(self, now_ms: int) -> None:
        """The node wants to stop: others lead, the quorum first and then its partitions."""
        self._lifecycle.begin_controlled_shutdown(now_ms)
        if self._driver.is_leader and now_ms >= self._hand_over_ms:
            self._hand_over_ms = now_ms + _HAND_OVER_AGAIN_MS
            staying = {b.broker_id for b in self._image.brokers.values() if is_active(b)}
            voters = self._driver.node.configuration.voter_ids
            successor = self._driver.transfer_leadership(
                [v for v in voters if node_id_of(v) in staying]
            )
            if successor is not None:
                log.info("node %d is asked to lead the quorum", node_id_of(successor))

    def _leave(self) -> None:
        self._driver.resign()
        self._driver.process_ready()
        if self._peers is not None:
            self._peers.flush()
            self._peers.close()
        self._driver.close()
        self._log.close()

    def _register_metrics(self) -> None:
        metrics = self._supervisor.metrics
        metrics.gauge("odradek_metadata_offset", "Entries applied", lambda: self._image.offset)
        metrics.gauge("odradek_quorum_term", "The quorum's term", lambda: self._driver.node.term)
        metrics.gauge(
            "odradek_quorum_is_leader", "1 at the active controller", lambda: self._driver.is_leader
        )
        metrics.gauge(
            "odradek_quorum_is_voter",
            "1 where this node votes",
            lambda: self._driver.node.configuration.is_voter(self._own_id),
        )
        metrics.gauge("odradek_commands", "Not answered yet", lambda: len(self._forwarding))
        peers = self._peers
        if peers is not None:
            metrics.counter(
                "odradek_peer_messages",
                "What happened between the nodes",
                lambda: {"dropped": peers.dropped_count, "refused": peers.refused_count},
                label="event",
            )

    # -- a turn ------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take in what this node's processes and the peers have said."""
        now_ms = _clock_ms()
        self._driver.tick(now_ms)
        for identity, payload in drain_with_identity(self._publisher.socket):
            for message in self._decode(payload):
                if type(message) is SubmitCommand:
                    self._forwarding.submit(identity, message, message.deadline_ms, now_ms)
                elif type(message) is MetadataApplied:
                    self._publisher.applied(identity, message)
                elif type(message) is SubscribeMetadata:
                    self._publisher.follow(identity, message, self._image)
                elif type(message) is LivenessReply:
                    self._publisher.still_there(message)
                elif type(message) is DescribeQuorum:
                    self._quorum.describe(identity, message.request_id, now_ms)
        self._peer_dispatch.dispatch(self._image.brokers, now_ms)
        if self._peer_dispatch.is_replaced and self._driver.is_idle:
            self._come_back_as_another()

    def _suspect(self, node_id: int, since_ms: int) -> None:
        if self._active is not None:
            self._active.controller.suspect(node_id, since_ms)

    def _carry_on(self, *, waits: bool = False) -> None:
        """Persist, send, apply, publish, answer: until nothing more follows from it."""
        if waits:
            self._driver.tick(_clock_ms())
        if self._active is not None:
            self._tick_decisions(self._active)
            self._write_down(self._active)
        has_news = True
        while has_news:
            events = self._driver.process_ready(waits=waits)
            for event in events:
                self._on_event(event)
            now_ms = _clock_ms()
            self._present(now_ms)
            self._answer(now_ms)
            self._open()
            if self._is_resigning:
                self._is_resigning = False
                self._driver.resign()
            # What was decided meanwhile is on its way before anything is waited for.
            has_news = bool(events) or self._driver.has_work
        if self._peers is not None:
            self._peers.flush()
        self._snapshot_if_due()

    def _present(self, now_ms: int) -> None:
        presence = self._lifecycle
        # Once: a process that dies and comes back soon does not make the node leave.
        self._is_complete |= self._expected <= self._publisher.names
        self._publisher.tick(now_ms)
        presence.tick(
            now_ms,
            offset=self._publisher.reached(self._image),
            is_complete=self._is_complete and not self._publisher.unresponsive,
        )
        shutdown_offset = presence.shutdown_offset
        is_free = (
            shutdown_offset is not None and self._publisher.reached(self._image) >= shutdown_offset
        )
        if is_free and not self._has_released:
            self._has_released = True
            self._supervisor.released()

    def _open(self) -> None:
        """Serve the processes of this node, and tell that it is ready, once it is registered."""
        presence = self._lifecycle
        broker = presence.broker(self._image)
        if broker is None and presence.is_refused and not self._config.is_clustered:
            # On a full disk an earlier start's registration does: clients shall be able to read.
            broker = self._image.brokers.get(self._config.node_id)
        self._publisher.is_serving |= broker is not None
        self._publisher.admit(self._image)
        if broker is not None and not broker.is_fenced and not self._is_ready:
            self._is_ready = True
            if (notice := min_insync_warning(self._config, self._image)) is not None:
                log.warning("%s", notice)
            self._supervisor.ready()
        if self._is_ready and self._image.configs is not self._configs_heeded:
            self._heed_configs()

    def _heed_configs(self) -> None:
        """Have as many workers as this node shall have, if that has changed."""
        config = self._config
        self._configs_heeded = self._image.configs
        workers = broker_settings(self._image, config.node_id, config.broker_configs).workers
        count = min(workers or config.worker_count, config.store_count)
        if count != self._worker_count:
            self._publisher.dismiss({f"worker-{n}" for n in range(count, self._worker_count)})
            self._worker_count = count
            if config.is_clustered:
                self._publisher.expect(_processes(config, count))
            self._lifecycle.resize_workers(count)
            self._supervisor.resize_workers(count)

    def _answer(self, now_ms: int) -> None:
        self._forwarding.settle(self._image.offset, self._publisher.reached(self._image), now_ms)
        self._quorum.settle(now_ms)

    def _tick_decisions(self, decisions: ActiveController) -> None:
        try:
            decisions.tick(_clock_ms())
        except (NoDiskSpaceError, NotProposedError) as error:
            log.warning("what is due by time has to wait: %r", error)
            decisions.controller.activate(_clock_ms())

    def _write_down(self, decisions: ActiveController) -> None:
        """Where voters listen, and with which data folder they vote, if the log says otherwise."""
        if not self._peer_directory.has_news:
            return
        update = pending_voter_update(self._driver.node.configuration, self._peer_directory.headers)
        if update is None:
            self._peer_directory.has_news = False
        else:
            decisions.change_membership(update)  # if it is refused, there is another turn

    # -- what the driver says ----------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case EntriesCommitted(entries):
                for entry in entries:
                    self._apply(entry)
                self._publisher.publish([e for e in entries if e.index > self._published])
                self._published = self._image.offset
            case SnapshotInstalled(index, content):
                self._image = _image_of(content, index)
                self._peer_directory.follow(self._driver.node.configuration)
                self._snapshot_index = index
                self._published = index
                self._publisher.replace(self._image)
            case SoftStateChanged(soft_state):
                self._stand(soft_state)
            case EntriesDiscarded(index, _):
                self._forwarding.discard_after(index)

    def _apply(self, entry: Entry) -> None:
        if entry.index <= self._image.offset:
            return  # told again by a core that began anew
        if entry.is_configuration:
            self._peer_directory.follow(self._driver.node.configuration)
            self._peer_dispatch.log_lost_vote()
        image = None if self._active is None else self._active.committed(entry)
        if image is None:
            delta = MetadataDelta(self._image)
            if entry.is_command:
                for record in decode_records(entry.data):
                    delta.replay(record)
            image = delta.apply(entry.index)
        self._image = image
        if self._active is None and entry.term == self._driver.node.term:
            self._lead_if_due()

    def _stand(self, soft_state: SoftState) -> None:
        decisions = self._active
        if decisions is not None and (
            soft_state.role is not Role.LEADER or soft_state.term != decisions.term
        ):
            self._active = None
        now_ms = _clock_ms()
        self._failure_detector.set_leader(soft_state.leader_id)
        if self._config.is_clustered:
            leader = None if soft_state.leader_id is None else node_id_of(soft_state.leader_id)
            log.info("%s in term %d, leader %s", soft_state.role, soft_state.term, leader)
            self._peer_dispatch.log_lost_vote()
        self._forwarding.set_leader(soft_state.leader_id, self._active, now_ms)

    def _lead_if_due(self) -> None:
        """Begin to decide when our own first entry is applied."""
        node = self._driver.node
        if not self._driver.is_leader or node.log.last_index != self._image.offset:
            return
        decisions = ActiveController(
            self._driver,
            self._image,
            term=node.term,
            node_id=self._config.node_id,
            static=self._config.broker_configs,
            has_room=self._has_room,
            headers=self._peer_directory,
        )
        self._peer_directory.has_news = True
        if not self._image.cluster_id:
            decisions.propose(bootstrap_records(self._config), makes_room=True)
        if self._config.is_clustered:
            decisions.controller.activate(_clock_ms())
            for suspect, since_ms in self._failure_detector.suspects(_clock_ms()):
                decisions.controller.suspect(suspect, since_ms)
        self._active = decisions
        self._forwarding.set_leader(self._own_id, decisions, _clock_ms())

    def _has_room(self, byte_count: int) -> bool:
        """Whether the log takes so much more. If not, another node shall lead: its disk may."""
        has_room = self._log.has_space_for(byte_count)
        if not has_room and self._config.is_clustered and _clock_ms() >= self._resign_again_ms:
            log.error("no room on this node's disk: another one is asked to decide")
            self._resign_again_ms = _clock_ms() + _RESIGN_AGAIN_MS
            self._is_resigning = True
        return has_room

    # -- the log -----------------------------------------------------------------------------------

    def _load_snapshot(self) -> MetadataImage:
        mark = self._log.snapshot
        if mark is None:
            return MetadataImage.empty()
        return _image_of(b"".join(self._log.iter_snapshot()), mark.index)

    def _snapshot_if_due(self) -> None:
        index = self._image.offset
        if index - self._snapshot_index < SNAPSHOT_ENTRIES or not self._driver.is_idle:
            return
        self._driver.snapshot(index, encode_records(image_records(self._image)))
        # Also when it failed: the next try is as far away as the next success would be.
        self._snapshot_index = index

    # -- peers -------------------------------------------------------------------------------------

    def _watch(self, socket: "zmq.Socket[bytes]", is_new: bool) -> None:
        if is_new:
            self._poller.register(socket, zmq.POLLIN)
        else:
            self._poller.unregister(socket)

    def _why_refused(self, header: PeerHeader) -> PeerRejected | None:
        raft_log = self._driver.node.log
        return peer_refusal(
            header,
            raft_log.configuration_at(raft_log.committed_index),
            is_recorded=raft_log.is_configuration_recorded,
            brokers=self._image.brokers,
        )

    def _come_back_as_another(self) -> None:
        """From the next start on, which is now, this node is a replica without a vote."""
        drop_bootstrap_voters(self._log)
        log.warning(
            "this node votes no more as what it was: it comes back without a vote; see above"
        )
        self._leave()
        raise SystemExit(0)


def _processes(config: NodeConfig, worker_count: int) -> set[str]:
    """The processes of this node that follow the metadata."""
    workers = {f"worker-{index}" for index in range(worker_count)}
    return workers | {f"router-{index}" for index in range(config.router_count)}


def _image_of(content: bytes, index: int) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for record in decode_records(content):
        delta.replay(record)
    return delta.apply(index)


def _gives_room(entry: Entry) -> bool:
    """Whether an entry may be written with the room that is kept back for a full disk."""
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
    config = NodeConfig.load_json(Path(sys.argv[1]))
    configure_logging(config, "controller")
    with SupervisorLink.connect(config, "controller") as supervisor:
        ControllerProcess(config, supervisor).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

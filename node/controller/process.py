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
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from cluster.controller.state import is_active
from cluster.metadata.delta import MetadataDelta
from cluster.metadata.image import MetadataImage
from cluster.metadata.records import (
    BrokerChanged,
    ConfigChanged,
    TopicDeleted,
    decode_records,
    encode_records,
)
from cluster.metadata.snapshot import image_records
from cluster.raft.messages import Entry, Message
from cluster.raft.ready import Role, Standing
from cluster.raft.settings import RaftSettings
from node.bus.endpoint import drain_with_identity, ipc_address
from node.bus.messages import (
    Applied,
    DescribeQuorum,
    Follow,
    Submit,
    ToController,
    Unreachable,
)
from node.bus.peer_messages import (
    PEER_VERSION,
    AskQuorum,
    Carried,
    ControlMessage,
    Forward,
    PeerHeader,
    PeerMessage,
    TellQuorum,
)
from node.bus.peers import PeerAddress, PeerBus
from node.config import NodeConfig
from node.controller.bootstrap import bootstrap_records
from node.controller.decisions import Decisions, NoRoomError, NotNowError
from node.controller.errands import Errands
from node.controller.followers import Followers
from node.controller.founders import check_founders
from node.controller.last_run import boot_id, note_run, previous_epoch
from node.controller.presence import Presence
from node.controller.quorum_view import QuorumView
from node.controller.raft_driver import Committed, Event, Installed, RaftDriver, Stood, TakenBack
from node.observability import ChildLink, configure_logging
from storage.metadata_log import MetadataLog

log = logging.getLogger(__name__)

SNAPSHOT_ENTRIES = 20_000
"""Entries after which the log is replaced by a snapshot of the image."""
_IDLE_POLL_MS = 1_000
_DOUBT_S = 1.5
"""How long a broken connection counts for more than the metadata: a node that is not fenced by then
is well, and it is the way between us that is not."""
_SUCCESSION_MS = 150
"""Between two who stand for election when a leader's process has ended: several rounds of votes."""
_RESIGN_AGAIN_MS = 10_000
"""After having stood back for lack of room. All disks may be full; then it is of no use."""
_HAND_OVER_AGAIN_MS = 1_000
"""After which a node that wants to stop and still leads the quorum asks again that another does."""
_INCARNATION_NAME = "incarnation"


class ControllerProcess:
    """See the module's docstring."""

    def __init__(self, config: NodeConfig, supervisor: ChildLink) -> None:
        self._config = config
        self._supervisor = supervisor
        self._log = MetadataLog.open(config.metadata_folder)
        voter_ids = [peer.node_id for peer in config.peers] or [config.node_id]
        check_founders(self._log, voter_ids, own_id=config.node_id)
        self._image = self._load_snapshot()
        self._snapshot_index = self._published = self._image.offset
        self._decisions: Decisions | None = None
        self._is_ready = False
        self._is_complete = False
        self._doubted: tuple[int, ...] = ()
        self._gone_ms: dict[int, int] = {}
        """Nodes whose controller's process has ended, as far as that shows: since when."""
        self._former_leader: int | None = None
        self._is_resigning = False
        self._resign_again_ms = 0
        self._hand_over_ms = 0
        self._has_released = False
        self._succession: tuple[int, int] | None = None
        incarnation = _incarnation(config)
        self._peers = _peer_bus(config, self._why_refused)
        self._driver = RaftDriver(
            self._log,
            own_id=config.node_id,
            voter_ids=voter_ids,
            send=self._send_raft,
            jitter_ms=lambda: random.randint(0, RaftSettings().election_timeout_ms),
            now_ms=_clock_ms(),
            may_spend=_gives_room,
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._followers = Followers(
            self._context,
            ipc_address(config.run_folder, "controller"),
            self._driver,
            sets_back=not config.is_of_several,
        )
        self._errands = Errands(
            node_id=config.node_id,
            send=self._send_control,
            tell=lambda identity, submitted: self._followers.send(identity, [submitted]),
        )
        self._quorum = QuorumView(
            self._driver,
            send=self._send_control,
            tell=lambda identity, answer: self._followers.send(identity, [answer]),
            wall_ms=_wall_ms,
        )
        self._presence = Presence(
            config,
            incarnation,
            lambda command, timeout_ms, answer: self._errands.submit_own(
                command, _clock_ms() + timeout_ms, answer, _clock_ms()
            ),
            previous_epoch=previous_epoch(config.data_folder, boot_id(), config.durability),
            on_registered=lambda epoch: note_run(config.data_folder, epoch, boot_id()),
        )
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._expected = {f"worker-{index}" for index in range(config.worker_count)} | {
            f"router-{index}" for index in range(config.router_count)
        }
        self._register_metrics()
        self._poller = zmq.Poller()
        self._poller.register(self._followers.socket, zmq.POLLIN)
        self._poller.register(self._driver.fileno(), zmq.POLLIN)
        for socket in supervisor.sockets:
            self._poller.register(socket, zmq.POLLIN)
        for peer_socket in () if self._peers is None else self._peers.sockets:
            self._poller.register(peer_socket, zmq.POLLIN)

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
                self._log.keep_reserve()
            self._carry_on()
        self._leave()

    def _timeout_ms(self) -> int:
        now_ms = _clock_ms()
        deadlines = [
            self._driver.next_deadline_ms(),
            self._errands.next_deadline_ms(),
            self._presence.next_deadline_ms(),
            self._quorum.next_deadline_ms(),
            None if self._succession is None else self._succession[0],
            None if self._decisions is None else self._decisions.controller.next_deadline_ms(),
        ]
        due_ms = min((due for due in deadlines if due is not None), default=now_ms + _IDLE_POLL_MS)
        return max(0, min(_IDLE_POLL_MS, due_ms - now_ms))

    def _leave_in_order(self, now_ms: int) -> None:
        """The node wants to stop: others lead, the quorum first and then its partitions."""
        self._presence.leave(now_ms)
        if self._driver.is_leader and now_ms >= self._hand_over_ms:
            self._hand_over_ms = now_ms + _HAND_OVER_AGAIN_MS
            staying = [b.broker_id for b in self._image.brokers.values() if is_active(b)]
            successor = self._driver.hand_over(staying)
            if successor is not None:
                log.info("node %d is asked to lead the quorum", successor)

    def _leave(self) -> None:
        self._driver.resign()
        self._driver.pump()
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
        metrics.gauge("odradek_commands", "Not answered yet", lambda: len(self._errands))
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
        self._succeed_if_due(now_ms)
        for identity, payload in drain_with_identity(self._followers.socket):
            for message in self._decode(payload):
                if type(message) is Submit:
                    self._errands.submit(identity, message, message.deadline_ms, now_ms)
                elif type(message) is Applied:
                    self._followers.applied(identity, message)
                elif type(message) is Follow:
                    self._followers.follow(identity, message, self._image)
                elif type(message) is DescribeQuorum:
                    self._quorum.describe(identity, message.request_id, now_ms)
        if self._peers is not None:
            for node_id in self._peers.look():
                self._gone_ms.pop(node_id, None)
                self._errands.reconnected(node_id, now_ms)
            self._doubt(self._peers)
            for node_id in self._peers.take_gone():
                self._gone_ms[node_id] = now_ms
                if self._decisions is not None:
                    self._decisions.controller.suspect(node_id, now_ms)
                self._succeed_later(node_id, now_ms)
            for header, messages in self._peers.receive():
                for peer_message in messages:
                    self._hear_peer(header, peer_message, now_ms)

    def _doubt(self, peers: PeerBus) -> None:
        """Tell this node's processes which nodes have just become unreachable."""
        now = time.monotonic()
        doubted = tuple(
            sorted(n for n, since in peers.broken_since.items() if now - since < _DOUBT_S)
        )
        if doubted != self._doubted:
            self._doubted = doubted
            self._followers.tell(Unreachable(doubted))

    def _succeed_later(self, node_id: int, now_ms: int) -> None:
        """A peer's process has ended. If it led, the others stand one after the other: who comes
        first finds nobody in its way."""
        voters = [v for v in self._driver.node.configuration.voter_ids if v != node_id]
        if node_id == self._driver.node.leader_id and self._config.node_id in voters:
            place = (voters.index(self._config.node_id) + node_id) % len(voters)
            self._succession = (now_ms + place * _SUCCESSION_MS, node_id)

    def _succeed_if_due(self, now_ms: int) -> None:
        if self._succession is not None and now_ms >= self._succession[0]:
            _, node_id = self._succession
            self._succession = None
            self._driver.succeed(node_id)

    def _hear_peer(self, header: PeerHeader, message: PeerMessage, now_ms: int) -> None:
        if isinstance(message, Forward):
            self._errands.submit_peers(header.node_id, header.incarnation, message, now_ms)
        elif isinstance(message, Carried):
            self._errands.carried(message, now_ms)
        elif isinstance(message, AskQuorum):
            self._quorum.asked(header.node_id, message)
        elif isinstance(message, TellQuorum):
            self._quorum.told(message)
        elif message.sender == header.node_id:
            self._driver.step(message)

    def _carry_on(self, *, waits: bool = False) -> None:
        """Persist, send, apply, publish, answer: until nothing more follows from it."""
        if waits:
            self._driver.tick(_clock_ms())
        if self._decisions is not None:
            self._tick_decisions(self._decisions)
        has_news = True
        while has_news:
            events = self._driver.pump(waits=waits)
            for event in events:
                self._on_event(event)
            now_ms = _clock_ms()
            self._present(now_ms)
            self._answer(now_ms)
            if self._is_resigning:
                self._is_resigning = False
                self._driver.resign()
            # What was decided meanwhile is on its way before anything is waited for.
            has_news = bool(events) or self._driver.has_work
        if self._peers is not None:
            self._peers.flush()
        self._snapshot_if_due()

    def _present(self, now_ms: int) -> None:
        presence = self._presence
        # Once: a process that dies and comes back does not make the node leave.
        self._is_complete |= self._expected <= self._followers.names
        presence.tick(
            now_ms,
            offset=self._followers.reached(self._image),
            is_complete=self._is_complete,
        )
        released_at = presence.released_at
        is_free = released_at is not None and self._followers.reached(self._image) >= released_at
        if is_free and not self._has_released:
            self._has_released = True
            self._supervisor.released()
        broker = presence.broker(self._image)
        if broker is None and presence.is_refused and not self._config.is_of_several:
            # On a full disk an earlier start's registration does: clients shall be able to read.
            broker = self._image.brokers.get(self._config.node_id)
        self._followers.is_serving |= broker is not None
        self._followers.admit(self._image)
        if broker is not None and not broker.is_fenced and not self._is_ready:
            self._is_ready = True
            self._supervisor.ready()

    def _answer(self, now_ms: int) -> None:
        self._errands.settle(self._image.offset, self._followers.reached(self._image), now_ms)
        self._quorum.settle(now_ms)

    def _tick_decisions(self, decisions: Decisions) -> None:
        try:
            decisions.tick(_clock_ms())
        except (NoRoomError, NotNowError) as error:
            log.warning("what is due by time has to wait: %r", error)
            decisions.controller.lead(_clock_ms())

    # -- what the driver says ----------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case Committed(entries):
                for entry in entries:
                    self._apply(entry)
                self._followers.publish([e for e in entries if e.index > self._published])
                self._published = self._image.offset
            case Installed(index, content):
                self._image = _image_of(content, index)
                self._snapshot_index = index
                self._published = index
                self._followers.replace(self._image)
            case Stood(standing):
                self._stand(standing)
            case TakenBack(index, _):
                self._errands.take_back(index)

    def _apply(self, entry: Entry) -> None:
        if entry.index <= self._image.offset:
            return  # told again by a core that began anew
        image = None if self._decisions is None else self._decisions.committed(entry)
        if image is None:
            delta = MetadataDelta(self._image)
            if entry.is_command:
                for record in decode_records(entry.data):
                    delta.replay(record)
            image = delta.apply(entry.index)
        self._image = image
        if self._decisions is None and entry.term == self._driver.node.term:
            self._lead_if_due()

    def _stand(self, standing: Standing) -> None:
        decisions = self._decisions
        if decisions is not None and (
            standing.role is not Role.LEADER or standing.term != decisions.term
        ):
            self._decisions = None
        now_ms = _clock_ms()
        if standing.leader_id not in (None, self._config.node_id):
            self._former_leader = standing.leader_id
        if self._config.is_of_several:
            log.info("%s in term %d, leader %s", standing.role, standing.term, standing.leader_id)
        self._errands.lead_by(standing.leader_id, self._decisions, now_ms)

    def _lead_if_due(self) -> None:
        """Begin to decide when our own first entry is applied."""
        node = self._driver.node
        if not self._driver.is_leader or node.log.last_index != self._image.offset:
            return
        decisions = Decisions(
            self._driver,
            self._image,
            term=node.term,
            node_id=self._config.node_id,
            static=self._config.broker_configs,
            has_room=self._has_room,
        )
        if not self._image.cluster_id:
            decisions.propose(bootstrap_records(self._config), makes_room=True)
        if self._config.is_of_several:
            decisions.controller.lead(_clock_ms())
            self._suspect(decisions)
        self._decisions = decisions
        self._errands.lead_by(self._config.node_id, decisions, _clock_ms())

    def _suspect(self, decisions: Decisions) -> None:
        """Nodes that have probably died: their processes have ended, or the quorum has lost sight
        of one that led it. Whoever handed the lead over in order is heard of in no time."""
        if self._former_leader is not None:
            decisions.controller.suspect(self._former_leader, _clock_ms())
            self._former_leader = None
        for gone, since_ms in self._gone_ms.items():
            decisions.controller.suspect(gone, since_ms)

    def _has_room(self, byte_count: int) -> bool:
        """Whether the log takes so much more. If not, another node shall lead: its disk may."""
        has_room = self._log.has_room_for(byte_count)
        if not has_room and self._config.is_of_several and _clock_ms() >= self._resign_again_ms:
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

    def _send_raft(self, message: Message) -> None:
        if self._peers is None:
            return
        if message.to >= 0:
            self._peers.send(message.to, message)
            return
        for peer in self._config.peers:
            self._peers.send(peer.node_id, message)

    def _send_control(self, node_id: int, message: ControlMessage) -> None:
        if self._peers is not None:
            self._peers.send(node_id, message)

    def _why_refused(self, header: PeerHeader) -> str | None:
        """A node whose disk was wiped has forgotten how it voted and what it promised."""
        broker = self._image.brokers.get(header.node_id)
        if broker is None or not broker.log_dirs or not header.directory_id:
            return None
        if header.directory_id in (str(uuid.UUID(bytes=known)) for known in broker.log_dirs):
            return None
        return (
            f"node {header.node_id} has come back with another data folder and cannot vote as what"
            " it was: bring its old folder back, or unregister it and add it as a new node"
        )


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


def _peer_bus(config: NodeConfig, refuses: Callable[[PeerHeader], str | None]) -> PeerBus | None:
    if not config.is_of_several:
        return None
    return PeerBus(
        header=PeerHeader(
            PEER_VERSION,
            config.cluster_id,
            config.node_id,
            config.directory_id,
            time.time_ns(),
            config.store_count,
        ),
        listen=PeerAddress(config.peer_host, config.peer_port),
        others={
            peer.node_id: PeerAddress(peer.host, peer.port)
            for peer in config.peers
            if peer.node_id != config.node_id
        },
        secret=config.cluster_secret,
        refuses=refuses,
    )


def _incarnation(config: NodeConfig) -> bytes:
    """New with every start of the node. One of several keeps it when this process alone is started
    anew: it need not be fenced for that."""
    if not config.is_of_several:
        return uuid.uuid4().bytes
    path = config.run_folder / _INCARNATION_NAME
    try:
        known = path.read_bytes()
    except FileNotFoundError:
        known = b""
    if len(known) != 16:
        known = uuid.uuid4().bytes
        path.write_bytes(known)
    return known


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    config = NodeConfig.load_json(Path(sys.argv[1]))
    configure_logging(config, "controller")
    with ChildLink.connect(config, "controller") as supervisor:
        ControllerProcess(config, supervisor).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""The controller's process: commands in, committed metadata out. With a quorum of one, it is the
quorum.

Order of duties in a turn: decide every command that has arrived (the pure controller, each on top
of the one before), persist all of their records with one sync, publish them to the processes of
this node, and answer a command once every process that follows has carried its records out. What is
not on the disk is never published; if persisting fails the process exits, and its successor reads
what is true from the log. Started as `python -m node.controller.process CONFIG`.
"""

import logging
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from cluster.controller.commands import (
    AlterConfigs,
    DeleteTopics,
    IncrementalAlterConfigs,
    decode_command,
    encode_reply,
)
from cluster.controller.controller import Controller
from cluster.metadata.image import MetadataImage
from cluster.metadata.records import Record, decode_records, encode_records
from cluster.metadata.snapshot import image_records
from node.bus.endpoint import bind_endpoint, drain_with_identity, encode, ipc_address
from node.bus.messages import (
    Applied,
    Follow,
    FromController,
    MetadataRecords,
    MetadataSnapshot,
    Submit,
    Submitted,
    ToController,
)
from node.config import NodeConfig
from node.controller.bootstrap import bootstrap_records, registration
from node.observability import ChildLink, configure_logging
from protocol.errors import ApiError, ErrorCode
from storage.metadata_log import (
    MetadataLog,
    MetadataLogError,
    MetadataLogFullError,
    SnapshotWriter,
)

log = logging.getLogger(__name__)

TERM = 1
"""A quorum of one elects itself once and for all."""
SNAPSHOT_ENTRIES = 20_000
"""Entries after which the log is replaced by a snapshot of the image."""
_ROOM_MAKERS = (DeleteTopics, AlterConfigs, IncrementalAlterConfigs)
"""What an operator does about a full disk has the room that was kept back: topics are deleted, or
kept for a shorter time."""
_PUBLISH_ENTRIES_MAX = 5_000
_IDLE_POLL_MS = 1_000


class _Follower:
    """A process of this node and how far it has come."""

    __slots__ = ("identity", "incarnation", "offset")

    def __init__(self, identity: bytes, incarnation: int, offset: int) -> None:
        self.identity = identity
        self.incarnation = incarnation
        self.offset = offset


class _Waiting:
    """A committed command whose answer waits for the followers."""

    __slots__ = ("answer", "deadline_ms", "identity", "offset")

    def __init__(self, identity: bytes, answer: Submitted, offset: int, deadline_ms: int) -> None:
        self.identity = identity
        self.answer = answer
        self.offset = offset
        self.deadline_ms = deadline_ms


class ControllerProcess:
    """See the module's docstring."""

    def __init__(self, config: NodeConfig, supervisor: ChildLink) -> None:
        self._config = config
        self._supervisor = supervisor
        self._log = MetadataLog.open(config.metadata_folder)
        self._controller = self._load()
        self._entries_since_snapshot = self._log.last_index - (
            self._log.snapshot.index if self._log.snapshot is not None else 0
        )
        self._unsynced: list[bytes] = []
        self._may_spend = False
        self._followers: dict[bytes, _Follower] = {}
        self._waiting: list[_Waiting] = []
        self._incarnation_id = uuid.uuid4().bytes
        self._is_full = False
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._bring_up()
        self._socket = bind_endpoint(self._context, ipc_address(config.run_folder, "controller"))
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        for socket in supervisor.sockets:
            self._poller.register(socket, zmq.POLLIN)

    @property
    def image(self) -> MetadataImage:
        """The committed metadata; its offset counts the entries of the log."""
        return self._controller.image

    def run(self) -> None:
        """Serve until the supervisor says stop."""
        self._supervisor.ready()
        is_stopping = False
        while not is_stopping:
            timeout_ms = _IDLE_POLL_MS
            if self._waiting:
                first = min(waiting.deadline_ms for waiting in self._waiting)
                timeout_ms = max(0, min(timeout_ms, first - _now_ms()))
            ready = dict(self._poller.poll(timeout_ms))
            if self._socket in ready:
                self._turn()
            else:
                self._look_around()
            self._answer()
            is_stopping = self._supervisor.poll()
        self._log.close()

    # -- the log -----------------------------------------------------------------------------------

    def _load(self) -> Controller:
        controller = Controller(
            MetadataImage.empty(),
            node_id=self._config.node_id,
            static=self._config.broker_configs,
        )
        next_index = 1
        mark = self._log.snapshot
        if mark is not None:
            entry = b"".join(self._log.iter_snapshot())
            controller.replay(decode_records(entry), mark.index)
            next_index = mark.index + 1
        for log_entry in self._log.read(next_index):
            controller.replay(decode_records(log_entry.data), log_entry.index)
        return controller

    def _bring_up(self) -> None:
        """Make a new cluster's first records, and register this node's present start.

        On a full disk the registration of an earlier start does: clients shall be able to read.
        """
        if self.image.offset == 0:
            self._apply(bootstrap_records(self._config))
        self._register()
        if self._config.node_id not in self.image.brokers:
            raise MetadataLogError("there is no room on the disk to register this node")

    def _register(self) -> None:
        command = registration(self._config, self._incarnation_id)
        self._apply(self._controller.handle(command, _now_ms()).records)
        self._persist()

    def _look_around(self) -> None:
        """What can wait until nobody asks for anything."""
        if not self._is_registered():
            self._register()
        self._log.keep_reserve()

    def _is_registered(self) -> bool:
        return self.image.brokers[self._config.node_id].incarnation_id == self._incarnation_id

    def _apply(self, records: Sequence[Record]) -> None:
        """Apply one command's records, so that the next is decided on top of them.

        They become an entry of the log with the turn's sync; before that nobody hears of them.
        """
        if records:
            self._unsynced.append(encode_records(records))
            self._controller.replay(records, self.image.offset + 1)

    def _persist(self) -> None:
        """Put the turn's entries on the disk with one sync, then publish them."""
        entries, may_spend = self._unsynced, self._may_spend
        if not entries:
            return
        self._unsynced, self._may_spend = [], False
        base = self._log.last_index
        try:
            self._log.append(entries, term=TERM, may_spend=may_spend)
        except MetadataLogFullError as error:
            self._take_back(error)
            return
        self._is_full = False
        message = MetadataRecords(base, tuple(entries))
        for identity in list(self._followers):
            self._send(identity, [message])
        self._entries_since_snapshot += len(entries)
        if self._entries_since_snapshot >= SNAPSHOT_ENTRIES:
            self._snapshot()

    def _take_back(self, error: MetadataLogFullError) -> None:
        """What was decided since the last sync has not happened: be as the log is, and say so."""
        if not self._is_full:
            self._is_full = True
            log.error("no room: commands are refused until there is some (%s)", error)
        self._controller = self._load()
        refused = [waiting for waiting in self._waiting if waiting.offset > self.image.offset]
        self._waiting = [waiting for waiting in self._waiting if waiting not in refused]
        code, text = ErrorCode.KAFKA_STORAGE_ERROR, "There is no room on the controller's disk."
        for waiting in refused:
            self._send(waiting.identity, [Submitted(waiting.answer.request_id, code, b"", text)])

    def _snapshot(self) -> None:
        index = self._log.last_index
        self._entries_since_snapshot = 0
        writer: SnapshotWriter | None = None
        try:
            writer = self._log.begin_snapshot(index=index, term=TERM)
            writer.write(encode_records(image_records(self.image)))
            writer.commit()
            self._log.truncate_prefix(index + 1)
        except (MetadataLogError, OSError) as error:
            # The log goes on without it, as long as it has room, and tries again later.
            log.error("no snapshot of the metadata: %s", error)
            if writer is not None:
                writer.abort()

    # -- a turn ------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for identity, payload in drain_with_identity(self._socket):
            for message in self._decode(payload):
                if type(message) is Submit:
                    self._submit(identity, message)
                elif type(message) is Follow:
                    self._follow(identity, message)
                elif type(message) is Applied:
                    follower = self._followers.get(identity)
                    if follower is not None:
                        follower.offset = max(follower.offset, message.offset)
        self._persist()

    def _submit(self, identity: bytes, message: Submit) -> None:
        command = decode_command(message.command)
        try:
            result = self._controller.handle(command, _now_ms())
        except ApiError as error:
            self._send(identity, [Submitted(message.request_id, error.code, b"", error.message)])
            return
        answer = Submitted(message.request_id, ErrorCode.NONE, encode_reply(result.reply))
        self._apply(result.records)
        self._may_spend |= bool(result.records) and isinstance(command, _ROOM_MAKERS)
        self._waiting.append(_Waiting(identity, answer, self.image.offset, message.deadline_ms))

    def _follow(self, identity: bytes, message: Follow) -> None:
        if message.cluster_id and message.cluster_id != self.image.cluster_id:
            log.error(
                "%s belongs to cluster %s, we are %s: it is not served",
                message.process,
                message.cluster_id,
                self.image.cluster_id,
            )
            return
        self._persist()
        self._followers[identity] = _Follower(identity, message.incarnation, message.offset)
        have = message.offset
        if have > self.image.offset or have == 0 or have < self._log.first_index - 1:
            records = (encode_records(image_records(self.image)),)
            self._send(identity, [MetadataSnapshot(self.image.offset, records)])
            return
        while have < self.image.offset:
            entries = [
                entry.data for entry in self._log.read(have + 1, have + 1 + _PUBLISH_ENTRIES_MAX)
            ]
            self._send(identity, [MetadataRecords(have, tuple(entries))])
            have += len(entries)

    def _answer(self) -> None:
        """Answer the commands that every follower has carried out, or whose time is up."""
        if not self._waiting:
            return
        reached = min(
            (follower.offset for follower in self._followers.values()), default=self.image.offset
        )
        now_ms = _now_ms()
        still: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.offset <= reached:
                self._send(waiting.identity, [waiting.answer])
            elif waiting.deadline_ms <= now_ms:
                request_id = waiting.answer.request_id
                self._send(
                    waiting.identity, [Submitted(request_id, ErrorCode.REQUEST_TIMED_OUT, b"")]
                )
            else:
                still.append(waiting)
        self._waiting = still

    def _send(self, identity: bytes, messages: "list[FromController]") -> None:
        try:
            self._socket.send_multipart((identity, encode(messages)), zmq.NOBLOCK)
        except zmq.ZMQError:
            # It is away. It will say where it stands when it returns; nobody waits for it till
            # then.
            self._followers.pop(identity, None)


def _now_ms() -> int:
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

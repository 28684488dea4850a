"""This node among the brokers: registered at its start, heard of ever after.

    state         event                                       next
    ---------------------------------------------------------------------------
    UNREGISTERED  its time has come                           RegisterBroker is sent
                  it is registered                            REGISTERED
                  it is refused                               tried again after a while
    REGISTERED    the interval has passed                     BrokerHeartbeat is sent
                  the heartbeat is refused for its epoch      UNREGISTERED
    either        the node wants to stop                      LEAVING
    LEAVING       again and again                             BrokerHeartbeat that wants to shut
                                                              down is sent
                  the answer says that it should shut down    released
                  nobody has answered for SHUTDOWN_GIVE_UP_MS, or
                  it is not registered                        released: there is nobody to ask

A node on its own is registered once for each start, serves at once and sends no heartbeats. One of
several is fenced until it has caught up and all of its processes follow; if it is not heard of for
the session timeout the active controller fences it.
"""

import logging
import uuid
from collections.abc import Callable

from odradek.cluster.controller.commands import (
    BrokerHeartbeat,
    BrokerReply,
    Command,
    HeartbeatReply,
    decode_reply,
    encode_command,
)
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.node.bus.peer_messages import ForwardResponse
from odradek.node.config import NodeConfig
from odradek.node.controller.bootstrap import registration
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid

log = logging.getLogger(__name__)

RETRY_MS = 200
REGISTRATION_TIMEOUT_MS = 5_000
FIRST_HEARTBEAT_MS = 50
SHUTDOWN_HEARTBEAT_MS = 20
"""Between the heartbeats of a node that wants to stop; clients wait for what comes of them."""
SHUTDOWN_GIVE_UP_MS = 3_000
"""Without any answer to who wants to stop: several times an election, so that there is no quorum
any more. All nodes may have been told to stop."""

_INCARNATION_NAME = "incarnation"

Submit = Callable[[bytes, int, Callable[[ForwardResponse], None]], None]
"""Command, timeout in milliseconds, and who hears what became of it."""


class BrokerLifecycle:
    """See the module's docstring. Times are of a clock that does not go back, in milliseconds."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation_id: Uuid,
        submit: Submit,
        *,
        previous_broker_epoch: int | None = None,
        on_registered: Callable[[int], None] = lambda _epoch: None,
    ) -> None:
        """`previous_broker_epoch` is what `last_run` says; `on_registered` hears of the new broker
        epoch before anything is done under it."""
        self._previous_epoch = previous_broker_epoch
        self._on_registered = on_registered
        self._config = config
        self._incarnation_id = incarnation_id
        self._submit = submit
        self._is_asking = False
        self._due_ms = 0
        self._broker_epoch: int | None = None
        self._now_ms = 0
        self._is_leaving = False
        self._registering = self._registered = config
        """What is being told, and what was told at last; the registration is told again, though it
        holds, when that is not what the node is."""
        self._answered_ms = 0
        self.is_refused = False
        """Whether the last registration was not possible for lack of room."""
        self.shutdown_offset: int | None = None
        """The offset of the metadata with which this node may stop; None while it may not."""

    def broker(self, image: MetadataImage) -> BrokerImage | None:
        """This start's registration, when it is committed and this process has been told so.

        Whoever decides answered after this process had begun, and the answer waits for an image
        that has all that was there then: nothing is lacking that a process of this node, or another
        node in its place, has acted upon before. A registration that is merely found may be old,
        where this process alone was started anew and has just begun to apply the log.
        """
        broker = image.brokers.get(self._config.node_id)
        is_told = self._broker_epoch is not None
        if not is_told or broker is None or broker.incarnation_id != self._incarnation_id:
            return None
        return broker

    def begin_controlled_shutdown(self, now_ms: int) -> None:
        """The node wants to stop. Only one of several need be asked."""
        if not self._is_leaving:
            self._is_leaving = True
            self._due_ms = self._answered_ms = now_ms

    def resize_workers(self, worker_count: int) -> None:
        """This node has another number of workers, which others find where it says: say so."""
        self._config = self._config.with_workers(worker_count)
        self._due_ms = self._now_ms

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self._is_asking or self._is_done() else self._due_ms

    def _is_done(self) -> bool:
        if self.shutdown_offset is not None:
            return True
        return self._broker_epoch is not None and not self._config.is_clustered

    def tick(self, now_ms: int, *, offset: int, is_complete: bool) -> None:
        """Say what is due. `offset` is how far the processes of this node have come, `is_complete`
        whether all of them are there."""
        self._now_ms = now_ms
        if self._is_leaving and self.shutdown_offset is None:
            is_nobody_there = now_ms - self._answered_ms >= SHUTDOWN_GIVE_UP_MS
            if is_nobody_there or self._broker_epoch is None:
                self.shutdown_offset = 0
        if self._is_asking or self._is_done() or now_ms < self._due_ms:
            return
        self._is_asking = True
        command: Command
        if self._broker_epoch is None or self._registered is not self._config:
            self._registering = self._config
            command, timeout_ms = (
                registration(self._config, self._incarnation_id, self._previous_epoch),
                REGISTRATION_TIMEOUT_MS,
            )
        else:
            command = BrokerHeartbeat(
                broker_id=self._config.node_id,
                broker_epoch=self._broker_epoch,
                metadata_offset=offset,
                wants_fence=not is_complete,
                wants_shut_down=self._is_leaving,
            )
            timeout_ms = RETRY_MS * 2
        self._submit(encode_command(command), timeout_ms, self._on_answer)

    def _on_answer(self, carried: ForwardResponse) -> None:
        self._is_asking = False
        self._due_ms = self._now_ms + RETRY_MS
        code = carried.error_code
        if code == ErrorCode.NONE:
            self._answered_ms = self._now_ms
            reply = decode_reply(carried.reply)
            if isinstance(reply, BrokerReply):
                self._broker_epoch = self._previous_epoch = reply.broker_epoch
                self._registered = self._registering
                self._on_registered(reply.broker_epoch)
                self.is_refused = False
                self._due_ms = self._now_ms + FIRST_HEARTBEAT_MS
            elif isinstance(reply, HeartbeatReply):
                wait_ms = FIRST_HEARTBEAT_MS if reply.is_fenced else reply.next_heartbeat_ms
                if self._is_leaving:
                    wait_ms = SHUTDOWN_HEARTBEAT_MS
                    if reply.should_shut_down:
                        self.shutdown_offset = carried.offset
                self._due_ms = self._now_ms + wait_ms
        elif self._broker_epoch is None:
            self.is_refused = code == ErrorCode.KAFKA_STORAGE_ERROR
            if code != ErrorCode.REQUEST_TIMED_OUT and not self.is_refused:
                log.warning(
                    "this node is not registered yet: %s",
                    carried.error_message or ErrorCode(code).message,
                )
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            log.warning("this node is registered anew")
            self._broker_epoch = None
            self._due_ms = self._now_ms


def incarnation_of(config: NodeConfig) -> bytes:
    """New with every start of the node. One of several keeps it when this process alone is started
    anew: it need not be fenced for that."""
    if not config.is_clustered:
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

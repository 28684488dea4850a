"""Registration, heartbeats and controlled shutdown of this broker (KIP-631).

    state          event                                       next
    ---------------------------------------------------------------------------
    UNREGISTERED   at the start, or RETRY_MS after an error    RegisterBroker is sent
                   it is registered                            REGISTERED
    REGISTERED     the heartbeat interval has passed           BrokerHeartbeat is sent
                   STALE_BROKER_EPOCH                          UNREGISTERED
    either         the node is to stop                         SHUTTING_DOWN
    SHUTTING_DOWN  every SHUTDOWN_HEARTBEAT_MS                 BrokerHeartbeat, wants_shut_down
                   the response: should_shut_down              may stop
                   no response for SHUTDOWN_GIVE_UP_MS, or
                   not registered                              may stop

A single node registers at every start, serves at once and sends no heartbeats; what it leads gets
new leader epochs. A node of a cluster is fenced until it has caught up and all of its processes
apply the metadata; the active controller fences it when its session times out.
"""

import secrets
import uuid
from collections.abc import Callable

import msgspec

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
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid

log = get_logger(__name__)

RETRY_MS = 200
REGISTRATION_TIMEOUT_MS = 5_000
FIRST_HEARTBEAT_MS = 50
SHUTDOWN_HEARTBEAT_MS = 20
"""Clients wait while leadership moves, so a stopping node sends heartbeats quickly."""
DECOY_KEY_BYTES = 32
SHUTDOWN_GIVE_UP_MS = 3_000
"""Several elections: without a response for so long there is no quorum. All nodes may be
stopping."""

_INCARNATION_NAME = "incarnation"

Submit = Callable[[bytes, int, Callable[[ForwardResponse], None]], None]
"""Command, timeout in milliseconds, and the callback for the response."""


class BrokerLifecycle:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation_id: Uuid,
        submit: Submit,
        *,
        previous_broker_epoch: int | None = None,
        on_registered: Callable[[int], None] = lambda _epoch: None,
    ) -> None:
        """`previous_broker_epoch` is that of `clean_shutdown`. `on_registered` gets the new broker
        epoch before it is used."""
        self._previous_epoch = previous_broker_epoch
        self._on_registered = on_registered
        self._config = config
        self._incarnation_id = incarnation_id
        self._submit = submit
        self._is_awaiting_response = False
        self._due_ms = 0
        self._broker_epoch: int | None = None
        self._now_ms = 0
        self._is_shutting_down = False
        self._registering = self._registered = config
        """The configuration that is being registered, and the one that is. A change, as of the
        number of workers, is registered again."""
        self._has_changed = False
        """Whether others do not know the configuration yet."""
        self._response_ms = 0
        self.is_refused = False
        """Whether the last registration failed because the disk is full."""
        self.shutdown_offset: int | None = None
        """The metadata offset at which this node may stop; None while it may not."""

    def broker(self, image: MetadataImage) -> BrokerImage | None:
        """The registration that this process has made, once it is in the image.

        The active controller responded after this process started, and the response waits for the
        image: so the image is at least as new as anything that a process of this node has acted
        upon before. A registration found in the image without a response may be older than that,
        if this process alone was restarted and has just begun to apply the log.
        """
        broker = image.brokers.get(self._config.node_id)
        is_registered = self._broker_epoch is not None
        if not is_registered or broker is None or broker.incarnation_id != self._incarnation_id:
            return None
        return broker

    def begin_controlled_shutdown(self, now_ms: int) -> None:
        """The node is to stop: have the active controller move its leaders to other nodes."""
        if not self._is_shutting_down:
            self._is_shutting_down = True
            self._due_ms = self._response_ms = now_ms

    def resize_workers(self, worker_count: int) -> None:
        """Register the ports of another number of workers."""
        self._config = self._config.with_workers(worker_count)
        self._due_ms = self._now_ms

    def follow(self, config: NodeConfig) -> None:
        """The configuration of this node has changed while it runs: register again if others see
        the difference, as another rack or advertised address."""
        config = config.with_workers(self._config.worker_count)
        incarnation = self._incarnation_id
        if registration(config, incarnation, None) != registration(self._config, incarnation, None):
            self._config = config
            self._has_changed = True
            self._due_ms = self._now_ms

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self._is_awaiting_response or self._is_done() else self._due_ms

    def _is_done(self) -> bool:
        if self.shutdown_offset is not None:
            return True
        is_registered = self._broker_epoch is not None and not self._has_changed
        return is_registered and not self._config.is_clustered

    def tick(self, now_ms: int, *, offset: int, is_complete: bool) -> None:
        """Send what is due. `offset` is what the processes of this node have applied; without
        `is_complete` one of them is missing or does not respond, and the node asks to be fenced."""
        self._now_ms = now_ms
        if self._is_shutting_down and self.shutdown_offset is None:
            has_no_quorum = now_ms - self._response_ms >= SHUTDOWN_GIVE_UP_MS
            if has_no_quorum or self._broker_epoch is None:
                self.shutdown_offset = 0
        if self._is_awaiting_response or self._is_done() or now_ms < self._due_ms:
            return
        self._is_awaiting_response = True
        command: Command
        if self._broker_epoch is None or self._registered is not self._config:
            self._registering = self._config
            own = registration(self._config, self._incarnation_id, self._previous_epoch)
            # The cluster takes that of the broker that registers first.
            command = msgspec.structs.replace(own, decoy_key=secrets.token_bytes(DECOY_KEY_BYTES))
            timeout_ms = REGISTRATION_TIMEOUT_MS
        else:
            command = BrokerHeartbeat(
                broker_id=self._config.node_id,
                broker_epoch=self._broker_epoch,
                metadata_offset=offset,
                wants_fence=not is_complete,
                wants_shut_down=self._is_shutting_down,
            )
            timeout_ms = RETRY_MS * 2
        self._submit(encode_command(command), timeout_ms, self._on_answer)

    def _on_answer(self, carried: ForwardResponse) -> None:
        self._is_awaiting_response = False
        self._due_ms = self._now_ms + RETRY_MS
        code = carried.error_code
        if code == ErrorCode.NONE:
            self._response_ms = self._now_ms
            reply = decode_reply(carried.reply)
            if isinstance(reply, BrokerReply):
                self._broker_epoch = self._previous_epoch = reply.broker_epoch
                self._registered = self._registering
                self._has_changed &= self._registered is not self._config
                self._on_registered(reply.broker_epoch)
                self.is_refused = False
                self._due_ms = self._now_ms + FIRST_HEARTBEAT_MS
            elif isinstance(reply, HeartbeatReply):
                wait_ms = FIRST_HEARTBEAT_MS if reply.is_fenced else reply.next_heartbeat_ms
                if self._is_shutting_down:
                    wait_ms = SHUTDOWN_HEARTBEAT_MS
                    if reply.should_shut_down:
                        self.shutdown_offset = carried.offset
                self._due_ms = self._now_ms + wait_ms
        elif self._broker_epoch is None:
            self.is_refused = code == ErrorCode.KAFKA_STORAGE_ERROR
            if code != ErrorCode.REQUEST_TIMED_OUT and not self.is_refused:
                log.warning(
                    "this node is not registered yet",
                    reason=carried.error_message or ErrorCode(code).message,
                )
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            log.warning("this broker's epoch is stale: it registers again")
            self._broker_epoch = None
            self._due_ms = self._now_ms


def incarnation_of(config: NodeConfig) -> bytes:
    """The incarnation id: new with every start of the node. It stays when this process alone is
    restarted: then the node is not fenced, and leads in the same leader epochs."""
    path = config.run_folder / _INCARNATION_NAME
    try:
        known = path.read_bytes()
    except FileNotFoundError:
        known = b""
    if len(known) != 16:
        known = uuid.uuid4().bytes
        path.write_bytes(known)
    return known

"""The client of this node's controller: receives metadata, submits commands.

Images are immutable: an old one stays consistent. After every (re)connection the router sends the
offset of its image, and the controller sends what is missing, as records or as a snapshot. A
command is answered when its records are committed and every process of this node has applied them,
so that a client can use what it has created at once.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
import zmq

from odradek.cluster.controller.commands import decode_reply, encode_command
from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.endpoint import DealerLink, descriptor, drain, encode
from odradek.node.bus.messages import (
    CommandSubmitted,
    DescribeQuorum,
    FromController,
    LivenessCheck,
    LivenessReply,
    MetadataApplied,
    NodesUnreachable,
    QuorumDescribed,
    QuorumState,
    SubmitCommand,
    SubscribeMetadata,
    ToController,
)
from odradek.node.bus.metadata_feed import apply_metadata
from odradek.node.bus.reply import Reply, TracedReply
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.observability import StorageState
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import Request

R = TypeVar("R")


class ControllerLink:
    """See the module's docstring. `on_image(old, new)` is called with every new image, before
    commands are answered."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        process: str,
        incarnation: int,
        now_ms: Callable[[], int],
        on_image: Callable[[MetadataImage, MetadataImage], None],
    ) -> None:
        self.image = MetadataImage.empty()
        self.unreachable: frozenset[int] = frozenset()
        """Brokers that the controller cannot reach, which the metadata may not show yet."""
        self._loop = loop
        self._process = process
        self._incarnation = incarnation
        self._now_ms = now_ms
        self._on_image = on_image
        self._decode = msgspec.msgpack.Decoder(list[FromController]).decode
        self._next_id = 0
        self._pending: dict[int, Reply[Any]] = {}
        self._unanswered: dict[int, SubmitCommand] = {}
        self._unsent: dict[int, SubmitCommand] = {}
        self.has_image = asyncio.Event()
        """Set when the first image has been applied."""
        self._storage_problem = ""
        self._link = DealerLink(context, address, process.encode())

    def start(self) -> None:
        """Connect. `on_image` may be called from now on."""
        self._loop.add_reader(descriptor(self._link.socket), self._receive)
        self._loop.add_reader(descriptor(self._link.monitor), self._on_monitor)
        self._on_monitor()

    async def submit(self, command: Request[R], timeout_ms: int) -> R:
        """Have the active controller execute a command; returns its reply, once this node has
        applied the records.

        Raises ApiError(REQUEST_TIMED_OUT) without a reply in time; the command may still take
        effect; ApiError(KAFKA_STORAGE_ERROR) while the metadata log cannot be written.
        """
        if self._storage_problem:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self._storage_problem)
        self._next_id = request_id = self._next_id + 1
        message = SubmitCommand(request_id, encode_command(command), self._now_ms() + timeout_ms)
        trace = RequestTrace.current
        reply: Reply[CommandSubmitted] = (
            Reply() if trace is None else _traced_reply(trace, type(command).__name__)
        )
        self._pending[request_id] = reply
        self._unanswered[request_id] = self._unsent[request_id] = message
        self._send_unsent()
        timed_out = CommandSubmitted(request_id, ErrorCode.REQUEST_TIMED_OUT, b"")
        timer = self._loop.call_later(max(timeout_ms, 1) / 1000, self._on_message, timed_out)
        submitted = await reply
        timer.cancel()
        if submitted.error_code:
            raise ApiError(ErrorCode(submitted.error_code), submitted.error_message)
        # The controller answers each command with its own type of reply.
        return cast("R", decode_reply(submitted.reply))

    def set_storage_state(self, state: StorageState) -> None:
        """While this node's controller is down because it cannot write the metadata log, commands
        are refused. Those that were sent time out now: they may have been executed."""
        is_down = "controller" in state.ended
        self._storage_problem = state.problems["controller"] if is_down else ""
        if is_down:
            for request_id in list(self._unanswered):
                code, text = ErrorCode.REQUEST_TIMED_OUT, self._storage_problem
                self._on_message(CommandSubmitted(request_id, code, b"", text))

    async def describe_quorum(self, timeout_ms: int) -> QuorumState | None:
        """The state of the quorum; None without an answer in time."""
        self._next_id = request_id = self._next_id + 1
        reply: Reply[QuorumDescribed] = Reply()
        self._pending[request_id] = reply
        self._send([DescribeQuorum(request_id)])
        timed_out = QuorumDescribed(request_id, None)
        timer = self._loop.call_later(timeout_ms / 1000, self._on_message, timed_out)
        self._receive()
        described = await reply
        timer.cancel()
        return described.state

    def fail_all(self) -> None:
        """The router stops: commands without a reply fail with REQUEST_TIMED_OUT."""
        for request_id in list(self._unanswered):
            self._on_message(CommandSubmitted(request_id, ErrorCode.REQUEST_TIMED_OUT, b""))
        for request_id in list(self._pending):
            self._on_message(QuorumDescribed(request_id, None))

    def close(self) -> None:
        """Close the connection."""
        self._loop.remove_reader(descriptor(self._link.socket))
        self._loop.remove_reader(descriptor(self._link.monitor))
        self._link.close()

    def _on_monitor(self) -> None:
        if self._link.take_connected():
            # Unanswered commands are sent again. One that was executed already is not executed
            # twice: a creation finds its topic's id, others fail (the topic is gone, the epoch is
            # old) or change nothing.
            self._subscribe()
            self._unsent = dict(self._unanswered)
            self._send_unsent()
        self._receive()

    def _send_unsent(self) -> None:
        if self._unsent and self._send(list(self._unsent.values())):
            self._unsent.clear()
        self._receive()

    def _send(self, messages: "list[ToController]") -> bool:
        try:
            self._link.socket.send(encode(messages), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self) -> None:
        for payload in drain(self._link.socket):
            for message in self._decode(payload):
                self._on_message(message)

    def _on_message(self, message: FromController) -> None:
        if isinstance(message, CommandSubmitted | QuorumDescribed):
            self._unsent.pop(message.request_id, None)
            self._unanswered.pop(message.request_id, None)
            reply = self._pending.pop(message.request_id, None)
            if reply is not None:
                reply.resolve(message)
        elif isinstance(message, NodesUnreachable):
            self.unreachable = frozenset(message.node_ids)
        elif isinstance(message, LivenessCheck):
            self._send([LivenessReply(self._process)])
        else:
            old, image = self.image, apply_metadata(self.image, message)
            if image is None:
                self._subscribe()
            elif image is not old:
                self.image = image
                self._on_image(old, image)
                self._send([MetadataApplied(self._process, image.offset)])
                self.has_image.set()

    def _subscribe(self) -> None:
        self._send([SubscribeMetadata(self._process, self._incarnation, self.image.offset)])


def _traced_reply(trace: RequestTrace, command: str) -> TracedReply[CommandSubmitted]:
    """The reply to a command that is part of a trace, with its stages in the controller."""

    def add_stages(submitted: CommandSubmitted) -> None:
        for stage in submitted.stages:
            trace.add(
                stage.name,
                stage.start_ns,
                stage.end_ns,
                process="controller",
                parent=reply.span,
                attributes=dict(stage.attributes),
            )

    reply: TracedReply[CommandSubmitted] = TracedReply(
        trace, "controller_command", {"command": command}, add_stages
    )
    return reply

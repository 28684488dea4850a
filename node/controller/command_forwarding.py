"""Commands on their way to the active controller, and the responses back.

    state      event                                                     next
    ---------------------------------------------------------------------------------------------
    QUEUED     this node leads                                           PROPOSED
               another node leads                                        FORWARDED; a peer's: error
    FORWARDED  the leader's response                                     REPLIED
               the leader does not lead, or another node does            QUEUED
               no response, or a new connection                          FORWARDED once more
    PROPOSED   the entry is committed (for a command of a process:
               and applied by all processes of this node)                answered
               leadership is lost                                        QUEUED; a peer's: refused
               the disk is full                                          answered
    REPLIED    the processes of this node have applied the entry         answered
    any        the deadline passes                                       answered REQUEST_TIMED_OUT

A command may be decided twice, if the response of a leader that died was lost. Then a creation
finds its topic's id; others are refused or change nothing more.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from time import perf_counter_ns

import msgspec

from odradek.node.bus.messages import CommandSubmitted, SubmitCommand, TracedSpan
from odradek.node.bus.peer_messages import ControlMessage, ForwardRequest, ForwardResponse
from odradek.node.controller.active_controller import DISK_FULL, ActiveController, NotProposedError
from odradek.protocol.errors import ErrorCode

RESEND_MS = 1_000
"""Between two requests to a leader that does not respond."""
RETRY_MS = 50
"""Between two attempts to propose a command."""

STAGES_MAX = 16
"""Stages of a command that are kept, of many attempts."""

Answer = Callable[[ForwardResponse], None]
"""Sends the response to the sender of the command. Its request id means nothing."""


class _State(Enum):
    QUEUED = auto()
    FORWARDED = auto()
    PROPOSED = auto()
    REPLIED = auto()


@dataclass(slots=True, kw_only=True)
class _PendingCommand:
    """One command. `response` is sent when `entry_index` is committed or applied."""

    key: int
    command: bytes
    deadline_ms: int
    answer: Answer
    waits_for_processes: bool
    is_peers: bool
    state: _State = _State.QUEUED
    next_ms: int = 0
    entry_index: int = 0
    response: ForwardResponse | None = None
    is_committed: bool = False
    """As this node knows."""
    stages: list[TracedSpan] | None = None
    """What has been done for a command of a process of this node, for traces."""
    stage_ns: int = field(default_factory=perf_counter_ns)
    """When the stage that goes on began."""

    def end_stage(self, name: str, *attributes: tuple[str, str]) -> None:
        """A stage ends now, and the next one begins."""
        began_ns, self.stage_ns = self.stage_ns, perf_counter_ns()
        if self.stages is not None and len(self.stages) < STAGES_MAX:
            self.stages.append(TracedSpan(name, began_ns, self.stage_ns, attributes))

    @property
    def has_response(self) -> bool:
        """Whether only commit, apply or the deadline is waited for."""
        return self.state in (_State.PROPOSED, _State.REPLIED)


class CommandForwarding:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        *,
        own_id: int,
        send: Callable[[int, ControlMessage], None],
        respond: Callable[[bytes, CommandSubmitted], None],
    ) -> None:
        """`own_id` is this node's member id. `send` sends to another member, `respond` to a
        process of this node."""
        self._own_id = own_id
        self._send = send
        self._respond = respond
        self._pending: dict[int, _PendingCommand] = {}
        self._of_peers: set[tuple[int, int, int]] = set()
        # New with every start: responses to the process before this one are ignored.
        self._next_key = time.time_ns()
        self._leader_id: int | None = None
        self._active: ActiveController | None = None

    def __len__(self) -> int:
        return len(self._pending)

    # -- submitting --------------------------------------------------------------------------------

    def submit(self, identity: bytes, message: SubmitCommand, now_ms: int) -> None:
        """A command of a process of this node."""

        stages: list[TracedSpan] = []

        def answer(response: ForwardResponse) -> None:
            self._respond(
                identity,
                CommandSubmitted(
                    message.request_id,
                    response.error_code,
                    response.reply,
                    response.error_message,
                    tuple(stages),
                ),
            )

        self._add(
            message.command,
            answer,
            deadline_ms=message.deadline_ms,
            now_ms=now_ms,
            waits_for_processes=True,
            stages=stages,
        )

    def submit_internal(
        self, command: bytes, deadline_ms: int, answer: Answer, now_ms: int
    ) -> None:
        """A command of the controller process itself."""
        self._add(command, answer, deadline_ms=deadline_ms, now_ms=now_ms)

    def submit_forwarded(
        self, member: int, incarnation: int, message: ForwardRequest, now_ms: int
    ) -> None:
        """A command that another node's controller has forwarded."""
        origin = (member, incarnation, message.request_id)
        if origin in self._of_peers:
            return  # A repeated request. The response to the first one follows.
        if self._active is None:
            self._send(member, ForwardResponse(message.request_id, ErrorCode.NOT_CONTROLLER))
            return
        self._of_peers.add(origin)

        def answer(response: ForwardResponse) -> None:
            self._of_peers.discard(origin)
            self._send(member, msgspec.structs.replace(response, request_id=message.request_id))

        deadline_ms = now_ms + message.timeout_ms
        self._add(message.command, answer, deadline_ms=deadline_ms, now_ms=now_ms, is_peers=True)

    def _add(
        self,
        command: bytes,
        answer: Answer,
        *,
        deadline_ms: int,
        now_ms: int,
        waits_for_processes: bool = False,
        is_peers: bool = False,
        stages: list[TracedSpan] | None = None,
    ) -> None:
        self._next_key += 1
        pending = self._pending[self._next_key] = _PendingCommand(
            key=self._next_key,
            command=command,
            deadline_ms=deadline_ms,
            answer=answer,
            waits_for_processes=waits_for_processes,
            is_peers=is_peers,
            stages=stages,
        )
        self._route(pending, now_ms)

    def _route(self, pending: _PendingCommand, now_ms: int) -> None:
        """Propose the command, forward it, or keep it queued."""
        if self._active is not None:
            self._propose(pending, self._active, now_ms)
        elif pending.is_peers:
            # The peer finds the leader by itself. Forwarded from here, the command could run twice.
            self._finish(pending, ForwardResponse(0, ErrorCode.NOT_CONTROLLER))
        elif self._leader_id is not None and self._leader_id != self._own_id:
            pending.state = _State.FORWARDED
            pending.next_ms = now_ms + RESEND_MS
            timeout_ms = max(1, pending.deadline_ms - now_ms)
            self._send(self._leader_id, ForwardRequest(pending.key, pending.command, timeout_ms))
        else:
            pending.next_ms = now_ms + RESEND_MS

    def _propose(self, pending: _PendingCommand, active: ActiveController, now_ms: int) -> None:
        try:
            response, pending.entry_index = active.handle(pending.command, now_ms)
        except NotProposedError:
            pending.state = _State.QUEUED
            pending.next_ms = now_ms + RETRY_MS
            return
        pending.response = response
        pending.state = _State.PROPOSED
        pending.is_committed = False
        pending.end_stage("decide")

    # -- events ------------------------------------------------------------------------------------

    def set_leader(
        self, leader_id: int | None, active: ActiveController | None, now_ms: int
    ) -> None:
        """The leader of the quorum has changed; `active` is set if it is this node."""
        before, self._active = self._active, active
        self._leader_id = leader_id
        for pending in list(self._pending.values()):
            if pending.state is _State.FORWARDED or (
                pending.state is _State.PROPOSED and before is not active
            ):
                pending.state = _State.QUEUED
            if pending.state is _State.QUEUED:
                self._route(pending, now_ms)

    def discard_after(self, index: int) -> None:
        """The disk was full: entries above `index` are lost."""
        full = ForwardResponse(0, ErrorCode.KAFKA_STORAGE_ERROR, error_message=DISK_FULL)
        for pending in list(self._pending.values()):
            if pending.state is _State.PROPOSED and pending.entry_index > index:
                self._finish(pending, full)

    def member_reconnected(self, member: int, now_ms: int) -> None:
        """Requests to that member may be lost: forward them again."""
        if member == self._leader_id:
            for pending in list(self._pending.values()):
                if pending.state is _State.FORWARDED:
                    self._route(pending, now_ms)

    def on_response(self, message: ForwardResponse, now_ms: int) -> None:
        """The leader's response."""
        pending = self._pending.get(message.request_id)
        if pending is None or pending.state is not _State.FORWARDED:
            return
        if message.error_code == ErrorCode.NOT_CONTROLLER:
            pending.state = _State.QUEUED
            pending.next_ms = now_ms + RETRY_MS
            return
        pending.state = _State.REPLIED
        pending.end_stage("forward", ("broker", str(self._leader_id)))
        pending.response, pending.entry_index = message, message.offset

    def answer(self, now_ms: int, *, committed: int, applied: int) -> None:
        """Answer what can be answered, retry what is due. `committed` is the offset of this
        process's image, `applied` the least offset of the other processes of this node."""
        for pending in list(self._pending.values()):
            response = pending.response if pending.has_response else None
            if (
                response is not None
                and not pending.is_committed
                and pending.entry_index <= committed
            ):
                pending.is_committed = True
                pending.end_stage("commit")
            if response is not None and pending.entry_index <= (
                applied if pending.waits_for_processes and not response.error_code else committed
            ):
                self._finish(pending, response)
            elif pending.deadline_ms <= now_ms:
                self._finish(pending, ForwardResponse(0, ErrorCode.REQUEST_TIMED_OUT))
            elif response is None and pending.next_ms <= now_ms:
                self._route(pending, now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `answer` has something to do, if nothing happens before."""
        return min(
            (
                pending.deadline_ms
                if pending.has_response
                else min(pending.deadline_ms, pending.next_ms)
                for pending in self._pending.values()
            ),
            default=None,
        )

    def _finish(self, pending: _PendingCommand, response: ForwardResponse) -> None:
        if self._pending.pop(pending.key, None) is not None:
            pending.end_stage("apply")
            pending.answer(response)

"""Commands on their way: from whoever asks to the active controller, and the answers back.

    state      what happens                                              next
    ---------------------------------------------------------------------------------------------
    HELD       this node leads                                           DECIDED, or answered
               another node leads                                  FORWARDED; a peer's: refused
    FORWARDED  the leader has carried it out                             DONE
               the leader does not lead, or another does                 HELD
               silence, or a new connection                              FORWARDED once more
    DECIDED    the entry is committed and, where that is wanted,
               carried out by all processes of this node                 answered
               leadership is lost                                        HELD; a peer's: refused
               the disk had no room for it                               answered
    DONE       the processes of this node have come as far               answered
    any        the deadline passes                                       answered REQUEST_TIMED_OUT

A command may be carried out twice: when the answer of a leader that died was lost. Then a creation
finds its topic's id, others are refused or change nothing more.
"""

import time
from collections.abc import Callable, Iterator
from enum import Enum, auto

from odradek.cluster.controller.commands import (
    AlterConfigs,
    BrokerHeartbeat,
    Command,
    DeleteTopics,
    IncrementalAlterConfigs,
    decode_command,
)
from odradek.cluster.raft.configuration import node_id_of
from odradek.node.bus.messages import CommandSubmitted, SubmitCommand
from odradek.node.bus.peer_messages import ControlMessage, ForwardRequest, ForwardResponse
from odradek.node.controller.active_controller import (
    ActiveController,
    NoDiskSpaceError,
    NotProposedError,
)
from odradek.protocol.errors import ApiError, ErrorCode

RESEND_MS = 1_000
"""After which a leader that says nothing is sent the command again."""
RETRY_MS = 50
"""After which a command is offered again that was not taken."""
_ROOM_MAKERS = (DeleteTopics, AlterConfigs, IncrementalAlterConfigs, BrokerHeartbeat)
"""What an operator does about a full disk has the room that was kept back: topics are deleted, or
kept for a shorter time. So has who serves and who does not."""
NO_ROOM = "There is no room on the controller's disk."

Answer = Callable[[ForwardResponse], None]
"""Hands the answer to whoever asked; the request id in it means nothing."""


class _State(Enum):
    HELD = auto()
    FORWARDED = auto()
    DECIDED = auto()
    DONE = auto()


class _PendingCommand:
    """One command. `index` is the entry that must be applied before `carried` may be told."""

    __slots__ = (
        "answer",
        "carried",
        "command",
        "deadline_ms",
        "index",
        "is_peers",
        "key",
        "next_ms",
        "state",
        "waits_for_followers",
    )

    def __init__(self, key: int, command: bytes, deadline_ms: int, answer: Answer) -> None:
        self.key = key
        self.command = command
        self.deadline_ms = deadline_ms
        self.answer = answer
        self.state = _State.HELD
        self.next_ms = 0
        self.index = 0
        self.carried = ForwardResponse(0, ErrorCode.NONE)
        self.is_peers = False
        self.waits_for_followers = True


class CommandForwarding:
    """See the module's docstring. Times are of a clock that does not go back, in milliseconds."""

    def __init__(
        self,
        *,
        own_id: int,
        send: Callable[[int, ControlMessage], None],
        tell: Callable[[bytes, CommandSubmitted], None],
    ) -> None:
        """Members of the quorum are known by their ids there. `send` speaks to another member,
        `tell` to a process of this node."""
        self._own_id = own_id
        self._send = send
        self._tell = tell
        self._errands: dict[int, _PendingCommand] = {}
        self._of_peers: set[tuple[int, int, int]] = set()
        # New with every start: an answer to our predecessor is none to us.
        self._next_key = time.time_ns()
        self._leader_id: int | None = None
        self._active: ActiveController | None = None

    def __len__(self) -> int:
        return len(self._errands)

    # -- asking ------------------------------------------------------------------------------------

    def submit(
        self, identity: bytes, message: SubmitCommand, deadline_ms: int, now_ms: int
    ) -> None:
        """A command of a process of this node."""

        def answer(carried: ForwardResponse) -> None:
            self._tell(
                identity,
                CommandSubmitted(
                    message.request_id, carried.error_code, carried.reply, carried.error_message
                ),
            )

        self._take(_PendingCommand(self._new_key(), message.command, deadline_ms, answer), now_ms)

    def submit_internal(
        self, command: bytes, deadline_ms: int, answer: Answer, now_ms: int
    ) -> None:
        """A command of the controller's own; nobody's carrying out is waited for."""
        errand = _PendingCommand(self._new_key(), command, deadline_ms, answer)
        errand.waits_for_followers = False
        self._take(errand, now_ms)

    def submit_forwarded(
        self, member: int, incarnation: int, message: ForwardRequest, now_ms: int
    ) -> None:
        """A command that another node's controller has forwarded."""
        name = (member, incarnation, message.request_id)
        if name in self._of_peers:
            return  # it was sent again; the answer is on its way
        if self._active is None:
            self._send(member, ForwardResponse(message.request_id, ErrorCode.NOT_CONTROLLER))
            return
        self._of_peers.add(name)

        def answer(carried: ForwardResponse) -> None:
            self._of_peers.discard(name)
            self._send(
                member,
                ForwardResponse(
                    message.request_id,
                    carried.error_code,
                    carried.reply,
                    carried.error_message,
                    carried.offset,
                ),
            )

        deadline_ms = now_ms + message.timeout_ms
        errand = _PendingCommand(self._new_key(), message.command, deadline_ms, answer)
        errand.is_peers = True
        errand.waits_for_followers = False
        self._take(errand, now_ms)

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def _take(self, errand: _PendingCommand, now_ms: int) -> None:
        self._errands[errand.key] = errand
        self._route(errand, now_ms)

    # -- who leads ---------------------------------------------------------------------------------

    def set_leader(
        self, leader_id: int | None, decisions: ActiveController | None, now_ms: int
    ) -> None:
        """Another node leads, nobody, or, with `decisions`, this one."""
        was_deciding = self._active
        self._leader_id, self._active = leader_id, decisions
        for errand in list(self._errands.values()):
            if errand.state is _State.FORWARDED or (
                errand.state is _State.DECIDED and was_deciding is not decisions
            ):
                errand.state = _State.HELD
            if errand.state is _State.HELD:
                self._route(errand, now_ms)

    def discard_after(self, index: int) -> None:
        """What was decided for entries above `index` has not happened: there was no room."""
        for errand in list(self._errands.values()):
            if errand.state is _State.DECIDED and errand.index > index:
                self._finish(
                    errand, ForwardResponse(0, ErrorCode.KAFKA_STORAGE_ERROR, error_message=NO_ROOM)
                )

    def member_reconnected(self, member: int, now_ms: int) -> None:
        """What was on its way to that member may be lost."""
        if member == self._leader_id:
            for errand in list(self._errands.values()):
                if errand.state is _State.FORWARDED:
                    self._route(errand, now_ms)

    def carried(self, message: ForwardResponse, now_ms: int) -> None:
        """The leader's answer."""
        errand = self._errands.get(message.request_id)
        if errand is None or errand.state is not _State.FORWARDED:
            return
        if message.error_code == ErrorCode.NOT_CONTROLLER:
            errand.state = _State.HELD
            errand.next_ms = now_ms + RETRY_MS
            return
        errand.state = _State.DONE
        errand.carried = message
        errand.index = message.offset

    def _route(self, errand: _PendingCommand, now_ms: int) -> None:
        if self._active is not None:
            self._decide(errand, self._active, now_ms)
        elif errand.is_peers:
            # The peer hears itself who leads now: were it sent on, it would be carried out twice.
            self._finish(errand, ForwardResponse(0, ErrorCode.NOT_CONTROLLER))
        elif self._leader_id is not None and self._leader_id != self._own_id:
            errand.state = _State.FORWARDED
            errand.next_ms = now_ms + RESEND_MS
            timeout_ms = max(1, errand.deadline_ms - now_ms)
            self._send(self._leader_id, ForwardRequest(errand.key, errand.command, timeout_ms))
        else:
            errand.next_ms = now_ms + RESEND_MS

    def _decide(self, errand: _PendingCommand, decisions: ActiveController, now_ms: int) -> None:
        try:
            command: Command = decode_command(errand.command)
        except ValueError as error:
            # A newer node's, or nonsense.
            text = f"node {node_id_of(self._own_id)} does not know this command: {error}"
            self._finish(
                errand, ForwardResponse(0, ErrorCode.UNSUPPORTED_VERSION, error_message=text)
            )
            return
        try:
            decided = decisions.decide(
                command, now_ms, makes_room=isinstance(command, _ROOM_MAKERS)
            )
        except ApiError as error:
            errand.carried = ForwardResponse(0, error.code, error_message=error.message)
            errand.waits_for_followers = False
            errand.index = decisions.index
        except NoDiskSpaceError:
            errand.carried = ForwardResponse(
                0, ErrorCode.KAFKA_STORAGE_ERROR, error_message=NO_ROOM
            )
            errand.waits_for_followers = False
            errand.index = 0
        except NotProposedError:
            errand.state = _State.HELD
            errand.next_ms = now_ms + RETRY_MS
            return
        else:
            errand.index = decided.entry_index
            errand.carried = ForwardResponse(
                0, ErrorCode.NONE, decided.reply, None, decided.entry_index
            )
        errand.state = _State.DECIDED

    # -- answering ---------------------------------------------------------------------------------

    def settle(self, applied: int, reached: int, now_ms: int) -> None:
        """Answer what can be: `applied` is this node's committed offset, `reached` what all of its
        processes have carried out."""
        for errand in self._due(applied, reached, now_ms):
            if errand.state in (_State.DECIDED, _State.DONE) and errand.index <= (
                reached if errand.waits_for_followers else applied
            ):
                self._finish(errand, errand.carried)
            elif errand.deadline_ms <= now_ms:
                self._finish(errand, ForwardResponse(0, ErrorCode.REQUEST_TIMED_OUT))
            else:
                self._route(errand, now_ms)

    def _due(self, applied: int, reached: int, now_ms: int) -> Iterator[_PendingCommand]:
        for errand in list(self._errands.values()):
            if errand.deadline_ms <= now_ms:
                yield errand
            elif errand.state in (_State.DECIDED, _State.DONE):
                if errand.index <= (reached if errand.waits_for_followers else applied):
                    yield errand
            elif errand.next_ms <= now_ms:
                yield errand

    def next_deadline_ms(self) -> int | None:
        """When `settle` has something to do, if nothing happens before."""
        return min(
            (
                errand.deadline_ms
                if errand.state in (_State.DECIDED, _State.DONE)
                else min(errand.deadline_ms, errand.next_ms)
                for errand in self._errands.values()
            ),
            default=None,
        )

    def _finish(self, errand: _PendingCommand, carried: ForwardResponse) -> None:
        if self._errands.pop(errand.key, None) is not None:
            errand.answer(carried)

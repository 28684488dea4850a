"""What a shard is told and what it answers: commands in, outcomes out, both plain values.

A shard is a pure state machine over the keys of one partition of a coordinator topic. It is given
a `Command` (or a timer key that is due) together with the time, and returns an `Outcome`: the
records that describe the change, the replies that follow from it, what is to be done elsewhere
because of it, and the timers to set or cancel. Nothing has happened until the runtime replays the
records, and nothing that depends on them leaves before they are committed. Called by every shard
and by `runtime`.
"""

from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from odradek.protocol.errors import ErrorCode

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TimerKey: TypeAlias = tuple[str, ...]
"""What the timer is for first, then whose it is: `("session", group_id, member_id)`."""

NO_REQUEST = -1
"""The request id of a command that nobody waits for."""


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request with its circumstances.

    `fresh_id` is the text of a new UUID, for requests that may need one: a shard draws no random
    numbers. `client_host` is as Kafka prints an address, with a slash before it. Answers to the
    requests of one `connection_id` reach the client in their order, or the connection has ended.
    """

    request: object
    request_id: int = NO_REQUEST
    api_version: int = 0
    client_id: str = ""
    client_host: str = ""
    connection_id: int = 0
    fresh_id: str = ""


class ShardReply(msgspec.Struct, frozen=True, gc=False):
    """The response to a request.

    It waits until everything written before it is committed, unless it is `is_immediate`: then it
    depends on nothing that a failed append would take back.
    """

    request_id: int
    response: object
    is_immediate: bool = False


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """The shard cannot answer a request: it is loading, has gone, or could not write.

    Whoever holds the request builds the response of its kind around `error_code`.
    """

    request_id: int
    error_code: ErrorCode


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something to be done outside of the shard, once everything written before it is committed.

    The shell carries it out as often as it takes, and says with a command of its own when it is
    done. It is lost when the shard is unloaded: whoever loads the shard asks for it again.
    """

    instruction: object


Answer: TypeAlias = ShardReply | ErrorReply


class TransactionalRecord(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A record that counts only if its producer's open transaction commits. It is written into a
    transactional batch of that producer."""

    producer_id: int
    producer_epoch: int
    record: R_co


class TransactionMarker(msgspec.Struct, frozen=True, gc=False):
    """The end of a producer's transaction in this partition: a record of its own kind, which makes
    what the producer wrote in it real or void."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class Timer(msgspec.Struct, frozen=True, gc=False):
    """Set, move or (without a deadline) cancel the timer of this key."""

    key: TimerKey
    deadline_ms: int | None


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Everything a command does.

    The records of one outcome are written together or not at all, unless it is not `is_atomic`:
    then there may be more of them than fit into one batch, and each stands for itself. The commands
    of `resumed_commands` are decided right after it: they were put off until now. If it
    `can_linger` for what is written next, its records need not be written by themselves: nobody
    waits for them, or nobody who would mind some milliseconds.
    """

    records: tuple[R, ...] = ()
    replies: tuple[ShardReply, ...] = ()
    timers: tuple[Timer, ...] = ()
    effects: tuple[Effect, ...] = ()
    resumed_commands: tuple[Command, ...] = ()
    is_atomic: bool = True
    can_linger: bool = False


class OutcomeBuilder(msgspec.Struct, Generic[R], kw_only=True, eq=False):
    """An outcome in the making, for transitions that are made of several steps."""

    records: list[R] = []
    replies: list[ShardReply] = []
    timers: list[Timer] = []
    effects: list[Effect] = []

    def reply(self, request_id: int, response: object) -> None:
        """Answer a request once everything written so far, this outcome included, is committed."""
        self.replies.append(ShardReply(request_id, response))

    def send(self, instruction: object) -> None:
        """Have something done elsewhere, once everything written so far is committed."""
        self.effects.append(Effect(instruction))

    def set_timer(self, key: TimerKey, deadline_ms: int) -> None:
        """Set the timer or move it; a later call of the same outcome wins."""
        self.timers.append(Timer(key, deadline_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        """Forget the timer; one that is not set may be cancelled."""
        self.timers.append(Timer(key, None))

    def build(self, *, is_atomic: bool = True, can_linger: bool = False) -> Outcome[R]:
        """The outcome as it stands."""
        return Outcome(
            records=tuple(self.records),
            replies=tuple(self.replies),
            timers=tuple(self.timers),
            effects=tuple(self.effects),
            is_atomic=is_atomic,
            can_linger=can_linger,
        )


def respond(command: Command, response: object, *, is_immediate: bool = False) -> Outcome[Any]:
    """An outcome that writes nothing. Without `is_immediate` the response may depend on what was
    written before, and waits until that is committed; with it, it is read from committed state."""
    return Outcome(replies=(ShardReply(command.request_id, response, is_immediate),))

"""The input and output of shards, as plain values: commands in, outcomes out.

A shard is a pure state machine over the keys of one partition of a coordinator topic. It gets a
`Command` (or the key of an expired timer) with the time, and returns an `Outcome`: records,
replies, effects and timers. State changes when the runtime replays the records. Replies and effects
leave when the records are committed. Used by every shard and by `runtime`.
"""

from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from odradek.protocol.errors import ErrorCode

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TimerKey: TypeAlias = tuple[str, ...]
"""The purpose of the timer, then its owner: `("session", group_id, member_id)`."""

NO_REQUEST = -1
"""The request id of a command without a response."""


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

    It is sent when everything that was written before it is committed. With `is_immediate` it is
    sent at once: it depends on nothing that a failed append would revert.
    """

    request_id: int
    response: object
    is_immediate: bool = False


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """The shard cannot handle a request: it is loading, was unloaded, or could not write.

    The caller makes the response of the API with `error_code`.
    """

    request_id: int
    error_code: ErrorCode


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something to do outside of the shard, when everything that was written before it is
    committed.

    The host retries it until it succeeds, and then sends a command to the shard. An unload cancels
    it; `on_loaded` returns it again.
    """

    instruction: object


Answer: TypeAlias = ShardReply | ErrorReply


class TransactionalRecord(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A record that becomes valid when its producer's open transaction commits. It is written to a
    transactional batch of that producer."""

    producer_id: int
    producer_epoch: int
    record: R_co


class TransactionMarker(msgspec.Struct, frozen=True, gc=False):
    """The end of a producer's transaction in this partition: a control record, which commits or
    aborts the records of the transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class Timer(msgspec.Struct, frozen=True, gc=False):
    """Set, move or (without a deadline) cancel the timer of this key."""

    key: TimerKey
    deadline_ms: int | None


class Outcome(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Everything that a command does.

    The records of one outcome are written together or not at all. Without `is_atomic` each record
    stands for itself, and there may be more than fit into one batch. `resumed_commands` were
    deferred and are handled right after this outcome. With `can_linger` the records may wait some
    milliseconds for the next batch.
    """

    records: tuple[R, ...] = ()
    replies: tuple[ShardReply, ...] = ()
    timers: tuple[Timer, ...] = ()
    effects: tuple[Effect, ...] = ()
    resumed_commands: tuple[Command, ...] = ()
    is_atomic: bool = True
    can_linger: bool = False


class OutcomeBuilder(msgspec.Struct, Generic[R], kw_only=True, eq=False):
    """Collects an outcome, for transitions of several steps."""

    records: list[R] = []
    replies: list[ShardReply] = []
    timers: list[Timer] = []
    effects: list[Effect] = []

    def reply(self, request_id: int, response: object) -> None:
        """Respond when everything written so far, this outcome included, is committed."""
        self.replies.append(ShardReply(request_id, response))

    def send(self, instruction: object) -> None:
        """Add an effect, for when everything written so far is committed."""
        self.effects.append(Effect(instruction))

    def set_timer(self, key: TimerKey, deadline_ms: int) -> None:
        """Set the timer or move it; a later call of the same outcome wins."""
        self.timers.append(Timer(key, deadline_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel the timer, whether it is set or not."""
        self.timers.append(Timer(key, None))

    def build(self, *, is_atomic: bool = True, can_linger: bool = False) -> Outcome[R]:
        """The outcome so far."""
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

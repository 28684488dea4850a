"""Outgoing messages, delayed until the state that they imply is durable.

A message waits if it implies a term, vote or entries that are not on the disk (figure 2: "Updated
on stable storage before responding to RPCs"). Others are sent at once, also during a sync. One
Ready at a time is being persisted. Called by `node`.
"""

from odradek.cluster.raft.messages import Entry, Message
from odradek.cluster.raft.ready import HardState, Ready, ReceivedChunk


class Outbox:
    """The messages of one member, and its durable hard state."""

    def __init__(self, durable: HardState) -> None:
        self.durable = durable
        self.sendable: list[Message] = []
        """Messages to send at once."""
        self._waiting: list[Message] = []
        self._outstanding: Ready | None = None

    def send(self, message: Message, *, is_durable: bool) -> None:
        """Send it now or, unless `is_durable`, after everything that is not on the disk yet."""
        (self.sendable if is_durable else self._waiting).append(message)

    def discard_pending(self) -> None:
        """The term is over: drop its waiting messages. Only a leader of that term would use them,
        and it must not count entries that this member may be about to replace."""
        self._waiting = []

    def take_sendable(self) -> tuple[Message, ...]:
        taken = tuple(self.sendable)
        self.sendable = []
        return taken

    def persist(
        self, hard_state: HardState, entries: tuple[Entry, ...], chunk: ReceivedChunk | None
    ) -> Ready | None:
        """The next Ready to persist, with the messages that wait for it. None while one is
        outstanding or if there is nothing.

        A commit index alone does not cause a sync.
        """
        if self._outstanding is not None:
            return None
        is_new_vote = (hard_state.term, hard_state.vote) != (self.durable.term, self.durable.vote)
        if not (is_new_vote or entries or chunk is not None or self._waiting):
            return None
        is_due = is_new_vote or (bool(entries) and hard_state != self.durable)
        ready = Ready(
            hard_state=hard_state if is_due else None,
            entries=entries,
            chunk=chunk,
            messages=tuple(self._waiting),
        )
        self._waiting = []
        if ready.must_persist:
            self._outstanding = ready
        return ready

    def persisted(self, ready: Ready) -> None:
        """The outstanding Ready is on the disk."""
        assert self._outstanding is ready, "advanced out of order"
        self._outstanding = None
        if ready.hard_state is not None:
            self.durable = ready.hard_state

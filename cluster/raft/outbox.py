"""What a member wants to say, held back until its disk can bear it out.

A message waits exactly if it speaks of something that is not durable yet: a term, a vote, entries
(figure 2: "Updated on stable storage before responding to RPCs"). The rest may leave at once, even
while a sync is under way. One Ready at a time is being persisted. Called by `node`.
"""

from odradek.cluster.raft.messages import Entry, Message
from odradek.cluster.raft.ready import HardState, Ready, ReceivedChunk


class Outbox:
    """The messages of one member, and the hard state that its disk has."""

    __slots__ = ("_outstanding", "_waiting", "durable", "sendable")

    def __init__(self, durable: HardState) -> None:
        self.durable = durable
        self.sendable: list[Message] = []
        """What may leave at once."""
        self._waiting: list[Message] = []
        self._outstanding: Ready | None = None

    def send(self, message: Message, *, is_durable: bool) -> None:
        """Say it now, or after everything that is not on the disk yet."""
        (self.sendable if is_durable else self._waiting).append(message)

    def discard_pending(self) -> None:
        """The term is over. What was to be said in it would be believed by nobody but a leader of
        that term, which must not count entries that this member may be about to replace.
        """
        self._waiting = []

    def take_sendable(self) -> tuple[Message, ...]:
        """What may leave at once, for good."""
        taken = tuple(self.sendable)
        self.sendable = []
        return taken

    def persist(
        self, hard_state: HardState, entries: tuple[Entry, ...], chunk: ReceivedChunk | None
    ) -> Ready | None:
        """The next Ready for the disk, with everything that waits for it; None while one is
        outstanding or when there is nothing.

        A commit index alone is not worth a sync: it goes along with what is.
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

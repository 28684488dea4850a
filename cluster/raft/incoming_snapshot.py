"""A leader's snapshot on its way in, chunk by chunk.

    chunk                                     what is done
    ----------------------------------------------------------------------------------------------
    of a snapshot we have not begun, at 0     begin: store it, forget an unfinished one
    of it, anywhere else                      ask for its beginning
    of the one begun, at our offset           store it
    of the one begun, anywhere else           say where we stand
    of an older one of the same leader        nothing: it is late
    while one is being stored                 nothing: it is late or doubled

Invariant: what was stored is a prefix of the snapshot with this mark. Stored bytes survive a change
of leader but no restart. Called by `node`.
"""

from odradek.cluster.raft.messages import SnapshotChunk, SnapshotMetadata
from odradek.cluster.raft.ready import ReceivedChunk


class IncomingSnapshot:
    """What has been received of at most one snapshot."""

    __slots__ = ("_leader_term", "mark", "offset", "storing")

    def __init__(self) -> None:
        self.mark: SnapshotMetadata | None = None
        self.offset = 0
        self.storing: ReceivedChunk | None = None
        """The chunk that the driver is storing or is to store."""
        self._leader_term = 0

    @property
    def is_completing(self) -> bool:
        """Whether the last chunk is on its way to the disk: the log is about to be replaced."""
        return self.storing is not None and self.storing.is_last

    def offer(self, message: SnapshotChunk) -> int | None:
        """A chunk of the present leader; the offset to answer with, if it is to be answered now.

        It has been taken if `storing` is set afterwards; then the answer follows `stored`.
        """
        if self.storing is not None:
            return None
        if message.snapshot != self.mark:
            is_late = (
                self.mark is not None
                and message.term == self._leader_term
                and message.snapshot.index < self.mark.index
            )
            if is_late:
                return None
            if message.offset:
                return 0
            self.mark, self.offset = message.snapshot, 0
        self._leader_term = message.term
        if message.offset != self.offset:
            return self.offset
        self.storing = ReceivedChunk(message.snapshot, message.offset, message.data)
        return None

    def stored(self) -> SnapshotMetadata | None:
        """The chunk is on the disk; the snapshot, if it is complete now."""
        chunk = self.storing
        assert chunk is not None
        self.storing = None
        self.offset = chunk.offset + len(chunk.data)
        if not chunk.is_last:
            return None
        self.forget()
        return chunk.snapshot

    def forget(self) -> None:
        """Whatever was received does not count."""
        self.mark = None
        self.offset = 0
        self.storing = None

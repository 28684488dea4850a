"""Receives a leader's snapshot, chunk by chunk.

    chunk                                     action
    ----------------------------------------------------------------------------------------------
    of a new snapshot, at offset 0            store it, drop an unfinished snapshot
    of a new snapshot, elsewhere              respond with offset 0
    of the current one, at our offset         store it
    of the current one, elsewhere             respond with our offset
    of an older one of the same leader        ignore: it is late
    while one is being stored                 ignore: it is late or duplicated

Invariant: the stored bytes are a prefix of the snapshot with this metadata. They survive a change
of leader but not a restart. Called by `follower_log`.
"""

from dataclasses import dataclass

from odradek.cluster.raft.messages import SnapshotChunk, SnapshotMetadata
from odradek.cluster.raft.ready import ReceivedChunk


@dataclass(eq=False)
class IncomingSnapshot:
    """The received part of at most one snapshot."""

    mark: SnapshotMetadata | None = None
    offset: int = 0
    pending_chunk: ReceivedChunk | None = None
    """The chunk that the driver has to store."""
    _leader_term: int = 0

    @property
    def is_completing(self) -> bool:
        """Whether the last chunk is being stored: the log is about to be replaced."""
        return self.pending_chunk is not None and self.pending_chunk.is_last

    def offer(self, message: SnapshotChunk) -> int | None:
        """A chunk of the current leader. Returns the offset to respond with, if now.

        If the chunk is accepted, `pending_chunk` is set; the response follows after `stored`.
        """
        if self.pending_chunk is not None:
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
        self.pending_chunk = ReceivedChunk(message.snapshot, message.offset, message.data)
        return None

    def stored(self) -> SnapshotMetadata | None:
        """The pending chunk is on the disk. Returns the snapshot if it is complete."""
        chunk = self.pending_chunk
        assert chunk is not None
        self.pending_chunk = None
        self.offset = chunk.offset + len(chunk.data)
        if not chunk.is_last:
            return None
        self.forget()
        return chunk.snapshot

    def forget(self) -> None:
        """Drop what was received."""
        self.mark = None
        self.offset = 0
        self.pending_chunk = None

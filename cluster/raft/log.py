"""A member's log in memory: the entries after the snapshot, durable or not.

    previous_index   first_index ... stable_index ... last_index
    (not kept)       |------ durable -----|-- unstable --|
                             snapshot.index <= applied_index <= committed_index <= last_index

Invariants: indexes have no gaps; terms never fall; entries up to `committed_index` never change;
entries to apply are durable here. The latest configuration in the log is effective (thesis 4.1), so
truncation also reverts configurations. Called by `node` and `leadership`, which share it.
"""

from bisect import bisect_right
from collections.abc import Sequence

from odradek.cluster.raft.configuration import Configuration, decode_configuration
from odradek.cluster.raft.messages import Entry, SnapshotMetadata


class RaftLog:
    def __init__(
        self,
        entries: Sequence[Entry] = (),
        *,
        bootstrap: Configuration,
        snapshot: SnapshotMetadata | None = None,
        previous_term: int | None = None,
        committed_index: int = 0,
    ) -> None:
        """The persisted log.

        `entries` may begin at or below `snapshot.index` (kept for slow followers); then
        `previous_term` is the term just before the first. `bootstrap` is effective as long as
        neither the snapshot nor an entry names voters.
        """
        index, term = (0, 0) if snapshot is None else (snapshot.index, snapshot.term)
        self.snapshot = snapshot
        self.previous_index = entries[0].index - 1 if entries else index
        self.previous_term = term if previous_term is None else previous_term
        assert self.previous_index <= index, "entries are missing after the snapshot"
        configuration = bootstrap
        if snapshot is not None and snapshot.configuration.voters:
            configuration = snapshot.configuration
        self._configurations: list[tuple[int, Configuration]] = [(index, configuration)]
        self._entries: list[Entry] = []
        self._extend(entries)
        self.stable_index = self.last_index
        self.applied_index = index
        self.committed_index = max(index, min(committed_index, self.last_index))

    # -- state -------------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Index of the first entry kept; `last_index + 1` when there is none."""
        return self.previous_index + 1

    @property
    def last_index(self) -> int:
        """Index of the last entry; that of the snapshot, or 0, when there is none."""
        return self.previous_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry; that of the snapshot, or 0, when there is none."""
        return self._entries[-1].term if self._entries else self.previous_term

    @property
    def configuration(self) -> Configuration:
        """The latest configuration in the log, committed or not."""
        return self._configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        """The index of its entry; 0 for the bootstrap voters."""
        return self._configurations[-1][0]

    @property
    def is_configuration_recorded(self) -> bool:
        """Whether the log itself names voters, in an entry or in its snapshot."""
        mark = self.snapshot
        return len(self._configurations) > 1 or (
            mark is not None and bool(mark.configuration.voters)
        )

    def configuration_at(self, index: int) -> Configuration:
        """The latest configuration up to `index`, which is not below the snapshot."""
        found = bisect_right(self._configurations, index, key=lambda pair: pair[0])
        return self._configurations[max(0, found - 1)][1]

    def can_campaign(self, member: int) -> bool:
        """Whether a member may be elected: it is a voter, or is removed by an uncommitted entry,
        which may need this member to become committed (thesis 4.2.2)."""
        is_uncommitted = self.configuration_index > self.committed_index
        return self.configuration.is_voter(member) or (
            is_uncommitted and self._configurations[-2][1].is_voter(member)
        )

    def entry_at(self, index: int) -> Entry | None:
        """The entry, if it is kept."""
        at = index - self.previous_index - 1
        return self._entries[at] if 0 <= at < len(self._entries) else None

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of the position before the first; None if not known."""
        at = index - self.previous_index - 1
        if 0 <= at < len(self._entries):
            return self._entries[at].term
        if at == -1:
            return self.previous_term
        mark = self.snapshot
        return mark.term if mark is not None and mark.index == index else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up-to-date as this one (5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_possible_match(self, index: int, term: int) -> tuple[int, int]:
        """The last (index, term) at or below `index` whose term is not above `term`.

        The logs cannot match above it, so each probe skips a whole term. At least the position
        before the first entry.
        """
        count = max(0, min(index - self.previous_index, len(self._entries)))
        found = bisect_right(self._entries, term, 0, count, key=lambda entry: entry.term)
        if found == 0:
            return self.previous_index, self.previous_term
        return self.previous_index + found, self._entries[found - 1].term

    def slice(self, from_index: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `from_index` on, at most `bytes_max` but at least one if there is one."""
        at = from_index - self.previous_index - 1
        taken: list[Entry] = []
        total = 0
        while at < len(self._entries):
            entry = self._entries[at]
            total += entry.size
            if taken and total > bytes_max:
                break
            taken.append(entry)
            at += 1
        return tuple(taken)

    # -- growing -----------------------------------------------------------------------------------

    def append(self, term: int, data: bytes) -> Entry:
        """A leader's new entry."""
        entry = Entry(self.last_index + 1, term, data)
        self._extend((entry,))
        return entry

    def merge(self, previous_index: int, previous_term: int, entries: Sequence[Entry]) -> bool:
        """Append a leader's entries, which follow (previous_index, previous_term).

        Entries that are here already stay, whatever follows them (figure 2, AppendEntries 3 and
        4): a late request must not remove what a later one has appended. False, without effect, if
        the previous entry does not match or a committed entry would change.
        """
        if self.term_at(previous_index) != previous_term:
            return False
        for at, entry in enumerate(entries):
            if self.term_at(entry.index) == entry.term:
                continue
            if entry.index <= self.last_index:
                if entry.index <= self.committed_index:
                    return False
                self._truncate(entry.index)
            self._extend(entries[at:])
            break
        return True

    def commit_to(self, index: int) -> None:
        """Commit everything up to `index`. Never goes back."""
        self.committed_index = max(self.committed_index, min(index, self.last_index))

    def _extend(self, entries: Sequence[Entry]) -> None:
        self._entries.extend(entries)
        base = self._configurations[0][0]
        for entry in entries:
            if entry.is_configuration and entry.index > base:
                self._configurations.append((entry.index, decode_configuration(entry.data)))

    def _truncate(self, from_index: int) -> None:
        assert from_index > self.committed_index
        del self._entries[from_index - self.previous_index - 1 :]
        self.stable_index = min(self.stable_index, from_index - 1)
        while len(self._configurations) > 1 and self._configurations[-1][0] >= from_index:
            self._configurations.pop()

    # -- persisting and applying -------------------------------------------------------------------

    def unstable(self) -> tuple[Entry, ...]:
        """The entries to persist. The first replaces what the disk has from its index on."""
        return tuple(self._entries[self.stable_index - self.previous_index :])

    def mark_stable(self, entries: Sequence[Entry]) -> None:
        """`entries` are on the disk now. Those that were replaced meanwhile do not count."""
        for entry in reversed(entries):
            if entry.index <= self.stable_index:
                return
            if self.term_at(entry.index) == entry.term:
                self.stable_index = entry.index
                return

    def take_committed(self, bytes_max: int) -> tuple[Entry, ...]:
        """The next entries to apply: committed, durable here, each returned once."""
        end = min(self.committed_index, self.stable_index)
        if end <= self.applied_index:
            return ()
        taken: list[Entry] = []
        total = 0
        at = self.applied_index - self.previous_index
        for entry in self._entries[at : end - self.previous_index]:
            total += entry.size
            if taken and total > bytes_max:
                break
            taken.append(entry)
        self.applied_index = taken[-1].index
        return tuple(taken)

    # -- snapshots ---------------------------------------------------------------------------------

    def compact(self, mark: SnapshotMetadata, first_index: int) -> None:
        """Take over our own snapshot of applied entries, and drop the entries below `first_index`,
        which is at most its index + 1."""
        assert mark.index <= self.applied_index, "the snapshot has entries that are not applied"
        assert first_index <= mark.index + 1, "dropped entries are not in the snapshot"
        assert mark.configuration.voters, "the snapshot has no configuration"
        if self.snapshot is None or mark.index > self.snapshot.index:
            self.snapshot = mark
            later = [pair for pair in self._configurations if pair[0] > mark.index]
            self._configurations = [(mark.index, mark.configuration), *later]
        first_index = min(first_index, self.stable_index + 1)
        if first_index > self.first_index:
            term = self.term_at(first_index - 1)
            assert term is not None
            del self._entries[: first_index - 1 - self.previous_index]
            self.previous_index, self.previous_term = first_index - 1, term

    def restore(self, mark: SnapshotMetadata) -> None:
        """Start again from a leader's snapshot, which is on the disk (section 7)."""
        assert mark.index > self.committed_index
        self._entries.clear()
        self._configurations = [(mark.index, mark.configuration)]
        self.previous_index, self.previous_term = mark.index, mark.term
        self.stable_index = self.applied_index = self.committed_index = mark.index
        self.snapshot = mark

"""Members of a quorum with real metadata logs, a network in memory and a clock moved by hand."""

from collections.abc import Callable, Iterable
from pathlib import Path

from cluster.raft.messages import Entry, Message
from cluster.raft.settings import RaftSettings
from node.controller.raft_driver import Committed, Event, Installed, RaftDriver, Stood, TakenBack
from storage.metadata_log import MetadataLog

SETTINGS = RaftSettings()
STEP_MS = 10


class Member:
    """One driver, its log, and all that it has said to its owner."""

    def __init__(self, room: "RaftRoom", node_id: int) -> None:
        self.room = room
        self.node_id = node_id
        self.log = MetadataLog.open(room.folder / str(node_id))
        self.driver = RaftDriver(
            self.log,
            own_id=node_id,
            voter_ids=room.voter_ids,
            send=room.sent.append,
            # The lower its id, the earlier a member stands.
            jitter_ms=lambda: 100 * node_id,
            now_ms=room.now_ms,
            may_spend=lambda entry: room.may_spend(entry),
            settings=room.settings,
        )
        self.applied: list[Entry] = []
        self.installed: list[Installed] = []
        self.taken_back: list[TakenBack] = []
        self.standings: list[Stood] = []

    @property
    def commands(self) -> list[bytes]:
        """What the application has been told, in order."""
        return [entry.data for entry in self.applied if entry.is_command]

    def pump(self) -> bool:
        """Carry out what is due; whether there was anything."""
        events = self.driver.pump(waits=True)
        for event in events:
            self._on_event(event)
        return bool(events)

    def _on_event(self, event: Event) -> None:
        match event:
            case Committed(entries):
                self.applied += entries
            case Installed():
                self.installed.append(event)
            case Stood():
                self.standings.append(event)
            case TakenBack():
                self.taken_back.append(event)

    def close(self) -> None:
        self.driver.close()
        self.log.close()


class RaftRoom:
    """See the module's docstring."""

    def __init__(
        self,
        folder: Path,
        voter_ids: Iterable[int] = (0, 1, 2),
        settings: RaftSettings = SETTINGS,
    ) -> None:
        self.folder = folder
        self.voter_ids = tuple(voter_ids)
        self.settings = settings
        self.now_ms = 1_000
        self.sent: list[Message] = []
        self.away: set[int] = set()
        self.may_spend: Callable[[Entry], bool] = lambda _entry: False
        self.members: dict[int, Member] = {}
        for node_id in self.voter_ids:
            self.start(node_id)

    def __getitem__(self, node_id: int) -> Member:
        return self.members[node_id]

    def start(self, node_id: int) -> Member:
        self.members[node_id] = Member(self, node_id)
        return self.members[node_id]

    def stop(self, node_id: int) -> None:
        self.members.pop(node_id).close()

    def restart(self, node_id: int) -> Member:
        """The process ends and a new one finds what is on the disk."""
        self.stop(node_id)
        return self.start(node_id)

    def settle(self) -> None:
        """Until nobody has anything to say or to do. Who is away hears nothing and is not heard."""
        is_busy = True
        while is_busy:
            is_busy = False
            for member in self.members.values():
                is_busy |= member.pump()
            sent = self.sent[:]
            self.sent.clear()  # the list itself is what drivers speak into
            for message in sent:
                is_busy = True
                if message.to in self.members and not {message.to, message.sender} & self.away:
                    self.members[message.to].driver.step(message)

    def elapse(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += STEP_MS
            for member in self.members.values():
                member.driver.tick(self.now_ms)
            self.settle()

    def elect(self) -> Member:
        """Let time pass until somebody leads whom the others follow."""
        for _ in range(500):
            leaders = [
                m
                for m in self.members.values()
                if m.driver.is_leader and m.node_id not in self.away
            ]
            if leaders and leaders[0].driver.node.log.committed_index:
                return leaders[0]
            self.elapse(STEP_MS)
        raise AssertionError("nobody is elected")

    def close(self) -> None:
        for member in self.members.values():
            member.close()

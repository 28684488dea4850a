"""Members of a quorum with real metadata logs, a network in memory and a clock moved by hand."""

from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

from odradek.cluster.raft.configuration import node_id_of
from odradek.cluster.raft.messages import ALL_MEMBERS, Entry, Message
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.bus.peer_messages import PEER_VERSION, PeerHeader
from odradek.node.controller.raft_driver import RaftDriver, RaftListener
from odradek.storage.metadata_log import MetadataLog

SETTINGS = RaftSettings()
STEP_MS = 10


class RaftMember:
    """One driver, its log, and its output to the application."""

    def __init__(self, harness: "RaftHarness", node_id: int) -> None:
        """A bootstrap voter, or one that joins: then its log has the voters."""
        self.harness = harness
        self.node_id = node_id
        self.log = MetadataLog.open(harness.folder / str(node_id))
        self.driver = RaftDriver(
            self.log,
            own_id=node_id,
            voter_ids=harness.voter_ids if node_id in harness.voter_ids else (),
            send=harness.sent.append,
            # The lower its id, the earlier a member stands.
            jitter_ms=lambda: 100 * node_id,
            now_ms=harness.now_ms,
            may_use_reserve=lambda entry: harness.may_use_reserve(entry),
            settings=harness.settings,
        )
        self.applied: list[Entry] = []
        self.installed: list[tuple[int, bytes]] = []
        self.discarded_after: list[int] = []
        self.listener = RaftListener(
            on_commit=self.applied.extend,
            on_snapshot=lambda index, content: self.installed.append((index, content)),
            on_soft_state=lambda _state: None,
            on_discard=self.discarded_after.append,
        )

    @property
    def commands(self) -> list[bytes]:
        """The commands that the application got, in order."""
        return [entry.data for entry in self.applied if entry.is_command]

    def process_ready(self) -> bool:
        """Carry out what is due; returns whether there was anything."""
        return self.driver.process_ready(self.listener, waits=True)

    def close(self) -> None:
        self.driver.close()
        self.log.close()


class PeerHeaders:
    """The headers that members have sent, by their ids."""

    def __init__(self, *headers: PeerHeader) -> None:
        self.headers = {header.member: header for header in headers}

    def header_of(self, member: int) -> PeerHeader | None:
        return self.headers.get(member)


def header(member: int, directory: int = 0, *, host: str = "a", port: int = 9192) -> PeerHeader:
    """The header of a member's messages."""
    text = str(UUID(int=directory)) if directory else ""
    node_id = node_id_of(member)
    return PeerHeader(PEER_VERSION, "c", node_id, text, 1, 8, member, host, port)


class RaftHarness:
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
        self.may_use_reserve: Callable[[Entry], bool] = lambda _entry: False
        self.members: dict[int, RaftMember] = {}
        for node_id in self.voter_ids:
            self.start(node_id)

    def __getitem__(self, node_id: int) -> RaftMember:
        return self.members[node_id]

    def start(self, node_id: int) -> RaftMember:
        self.members[node_id] = RaftMember(self, node_id)
        return self.members[node_id]

    def stop(self, node_id: int) -> None:
        self.members.pop(node_id).close()

    def restart(self, node_id: int) -> RaftMember:
        """The process ends and a new one reads the disk."""
        self.stop(node_id)
        return self.start(node_id)

    def settle(self) -> None:
        """Run until no member has messages or work. A member that is away neither sends nor
        receives."""
        is_busy = True
        while is_busy:
            is_busy = False
            for member in self.members.values():
                is_busy |= member.process_ready()
            sent = self.sent[:]
            self.sent.clear()  # the list itself is what drivers speak into
            for message in sent:
                is_busy = True
                heard = self.members.keys() if message.to == ALL_MEMBERS else {message.to}
                for to in heard & self.members.keys():
                    if not {to, message.sender} & self.away:
                        self.members[to].driver.step(message)

    def elapse(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += STEP_MS
            for member in self.members.values():
                member.driver.tick(self.now_ms)
            self.settle()

    def elect(self) -> RaftMember:
        """Let time pass until there is a leader that the others follow."""
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

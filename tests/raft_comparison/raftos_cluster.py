"""Three members of stock raftos 0.2.6, as `scenarios.Cluster` needs them.

Stock are its State, Follower, Candidate, Leader, Log, FileStorage, StateMachine, Timer, message
format and serializer, its files, and the call by which a program writes (State.set_value). Replaced
is its environment: `_Server` for its UDP server, an event loop whose clock jumps, and a seeded
random generator. Of its two serializers JSON is used: with the other, its default, it cannot read
its own log (see the tests). Each member has a subclass of State, because raftos keeps the leader in
class attributes, with one process for each member.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, cast

from tests.raft_comparison.network import ComparisonNetwork, InFlightMessage, Kind, Vote
from tests.raft_comparison.raftos_shims import import_raftos
from tests.raft_comparison.scenarios import ELECTION_MS, HEARTBEAT_MS, MEMBERS

STEP_MS: Final = 10
SEED: Final = 0
HOST: Final = "127.0.0.1"
PORT: Final = 7_000  # plus the member's number; nothing listens there
_KINDS: Final[Mapping[str, Kind]] = {
    "request_vote": Kind.VOTE,
    "request_vote_response": Kind.ANSWER,
    "append_entries": Kind.APPEND,
    "append_entries_response": Kind.ANSWER,
}


class _Serializer(Protocol):
    def pack(self, data: object) -> bytes: ...

    def unpack(self, data: bytes) -> dict[str, object]: ...


class _Log(Protocol):
    cache: list[dict[str, object]]


class _Storage(Protocol):
    term: int


class _State(Protocol):
    """The part of raftos' State that is used."""

    state: object
    log: _Log
    storage: _Storage

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def to_follower(self) -> None: ...

    def to_candidate(self) -> None: ...

    def request_handler(self, data: dict[str, object]) -> None: ...

    async def set_value(self, name: str, value: str) -> None: ...


class _LeapingSelector(selectors.SelectSelector):
    """Never waits: where the loop would sleep, the clock jumps."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += max(0.0, timeout or 0.0)
        return super().select(0)


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


class _Server:
    """Replaces raftos' UDP server: it gives a State its address, its peers and a transport."""

    def __init__(
        self, member: int, loop: asyncio.AbstractEventLoop, network: ComparisonNetwork
    ) -> None:
        self.member = member
        self.host, self.port = HOST, PORT + member
        self.loop = loop
        self.network = network
        self.serializer = _serializer()
        # In an order of its own: raftos has a set here, which has another one in each process.
        self.cluster = [(HOST, PORT + other) for other in MEMBERS if other != member]
        self.cluster_count = len(self.cluster)
        self.is_running = True

    async def send(self, data: dict[str, object], destination: str | tuple[str, int]) -> None:
        port = destination.split(":")[1] if isinstance(destination, str) else destination[1]
        if self.is_running:
            content = self.serializer.pack(data)
            self.network.post(_letter(self.member, int(port) - PORT, data, content))

    def broadcast(self, data: dict[str, object]) -> None:
        for destination in self.cluster:
            self.loop.create_task(self.send(data, destination))


class RaftosCluster:
    """See the module's docstring. To be closed."""

    def __init__(
        self, folder: Path, *, serializer: str = "JSONSerializer", seed: int = SEED
    ) -> None:
        raftos = import_raftos()
        raftos.configure(
            {
                "log_path": f"{folder}/",
                "serializer": getattr(raftos.serializers, serializer),
                "heartbeat_interval": HEARTBEAT_MS / 1_000,
                "step_down_missed_heartbeats": ELECTION_MS // HEARTBEAT_MS,
            }
        )
        self._module = raftos.state
        self._module.random = random.Random(seed)
        self._loop = _LeapingLoop()
        self._loop.set_exception_handler(self._on_error)
        self.network = ComparisonNetwork()
        self.acknowledged: list[str] = []
        self.errors: list[str] = []
        """Exceptions inside members; asyncio reports them and continues."""
        self._asked: list[asyncio.Task[None]] = []
        self.led: set[tuple[int, int]] = set()
        self._servers: dict[int, _Server] = {}
        self._states: dict[int, _State] = {}
        for member in MEMBERS:
            self.restart(member)

    def close(self) -> None:
        for member in MEMBERS:
            self.kill(member)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._turn()
        self._loop.close()

    @property
    def now_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    def elapse(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self._loop.run_until_complete(asyncio.sleep(STEP_MS / 1_000))
            self.deliver(lambda: False)

    def deliver(self, until: Callable[[], bool]) -> None:
        while True:
            self._turn()
            for member in self.leaders():
                self.led.add((self._states[member].storage.term, member))
            letter = None if until() else self.network.take()
            if letter is None:
                return
            if letter.to in self._states:
                self._within(self._hear, letter)

    def end_patience(self, member: int) -> None:
        """A follower campaigns; a candidate becomes a follower, and campaigns after the next
        timeout."""
        state = self._states[member]
        is_candidate = isinstance(state.state, self._module.Candidate)
        self._within(state.to_follower if is_candidate else state.to_candidate)

    def propose(self, member: int, command: str) -> None:
        task = self._loop.create_task(self._states[member].set_value(command, "set"))

        def answer(done: "asyncio.Task[None]") -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self.errors.append(repr(error))
            else:
                self.acknowledged.append(command)

        task.add_done_callback(answer)
        self._asked.append(task)

    def kill(self, member: int) -> None:
        if member in self._states:
            self._servers.pop(member).is_running = False
            self._within(self._states.pop(member).stop)

    def restart(self, member: int) -> None:
        if member not in self._states:
            server = self._servers[member] = _Server(member, self._loop, self.network)
            of_its_process = type("State", (self._module.State,), {})

            def start() -> None:
                self._states[member] = of_its_process(server)
                self._states[member].start()

            self._within(start)

    def leaders(self) -> list[int]:
        leader = self._module.Leader
        return [
            id_ for id_, state in sorted(self._states.items()) if isinstance(state.state, leader)
        ]

    def log(self, member: int) -> list[str]:
        entries = self._states[member].log.cache
        return [name for entry in entries for name in cast("dict[str, str]", entry["command"])]

    def _hear(self, letter: InFlightMessage) -> None:
        data = _serializer().unpack(letter.content)
        data["sender"] = (HOST, PORT + letter.sender)
        try:
            self._states[letter.to].request_handler(data)
        except Exception as error:
            self.errors.append(repr(error))

    def _within(self, do: Callable[..., None], *arguments: InFlightMessage) -> None:
        """Run on the loop: raftos asks asyncio for the running one."""

        async def run() -> None:
            do(*arguments)

        self._loop.run_until_complete(run())

    def _turn(self) -> None:
        """Run everything that is due, and its consequences, without time passing."""
        for _ in range(4):
            self._loop.run_until_complete(asyncio.sleep(0))

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        self.errors.append(repr(context.get("exception", context["message"])))


def _serializer() -> _Serializer:
    serializer: _Serializer = import_raftos().config.serializer
    return serializer


def _letter(sender: int, to: int, data: Mapping[str, object], content: bytes) -> InFlightMessage:
    kind = _KINDS[str(data["type"])]
    vote = None
    term = cast("int", data["term"])
    if kind is Kind.VOTE:
        vote = Vote(voter=sender, term=term, candidate=sender)
    elif data.get("vote_granted"):
        vote = Vote(voter=sender, term=term, candidate=to)
    return InFlightMessage(sender=sender, to=to, kind=kind, content=content, vote=vote)

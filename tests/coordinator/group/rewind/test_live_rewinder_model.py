"""Live rewinds of every type of group compared with a model, in random steps."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from odradek.coordinator.group.rewind.requests import RewindResult
from odradek.protocol.errors import ErrorCode
from tests.support.consumer_playbook import id_of
from tests.support.group_playbook import GroupCall
from tests.support.rewind_playbook import (
    CONSUMER,
    COOPERATIVE,
    EAGER,
    END,
    SILENT,
    TOPIC,
    DeliveryLedger,
    RewindMember,
    RewindStage,
    settle,
)

KINDS = (EAGER, SILENT, COOPERATIVE, CONSUMER)
A0, A1, A2, A3 = ((TOPIC, index) for index in range(4))


CROWDS = (
    *((kind, kind, kind) for kind in KINDS),
    # The group changes its protocol as members come and go (KIP-848, online migration).
    (EAGER, CONSUMER, EAGER),
    (SILENT, CONSUMER, SILENT),
    (COOPERATIVE, CONSUMER, COOPERATIVE),
)


class RewoundMembers(RuleBasedStateMachine):
    """Members of one type join, leave, read and commit during rewinds, undos and moves of the
    coordinator; and some commits are late.

    The model is the ledger: each record of a partition is delivered after the one before it, and
    the first one after a rewind (or its undoing) is the one that was asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stage = RewindStage(3)
        self.ledger = DeliveryLedger()
        self.readers: list[RewindMember] = []
        self.rewind: GroupCall | None = None
        self.request: dict[tuple[str, int], int | None] = {}
        self.undoes = 0
        self.stale: list[tuple[str, int, tuple[str, int], int]] = []
        self.ends_of: list[tuple[tuple[str, int], int]] = []

    @initialize(kinds=st.sampled_from(CROWDS))
    def begin(self, kinds: tuple[str, str, str]) -> None:
        self.readers = [
            RewindMember(self.stage, self.ledger, kind, f"r{at}") for at, kind in enumerate(kinds)
        ]
        settle(self.stage, *self.readers[:2])

    @rule(at=st.integers(0, 2))
    def step(self, at: int) -> None:
        self.readers[at].step()
        self._look()

    @rule(at=st.integers(0, 2), count=st.integers(1, 3))
    def read(self, at: int, count: int) -> None:
        self._look()
        self.readers[at].read(count)

    @rule(at=st.integers(0, 2))
    def commit(self, at: int) -> None:
        self.readers[at].commit()

    @rule(at=st.integers(0, 2), count=st.integers(1, 4))
    def lose_answers(self, at: int, count: int) -> None:
        """As when a node is so busy that clients lose patience (librdkafka waits for no heartbeat
        longer than the interval that it is told)."""
        reader = self.readers[at]
        if reader.kind == CONSUMER:
            reader.deaf_count = count

    @rule(at=st.integers(0, 2))
    def leave(self, at: int) -> None:
        if not self.readers[at].is_waiting:
            self.readers[at].leave()
        self._look()

    @rule()
    def wait(self) -> None:
        self.stage.tick(1)
        self._look()

    @rule(
        to=st.dictionaries(
            st.sampled_from([A0, A1, A2]), st.integers(0, 20), min_size=1, max_size=2
        )
    )
    def rewind_somewhere(self, to: dict[tuple[str, int], int]) -> None:
        if self.rewind is None and not self.stage.shard.rewinds.has_pending:
            self._start(dict(to))

    @rule()
    def undo(self) -> None:
        points = self.stage.shard.rewinds.undo_points("g")
        if self.rewind is None and points and not self.stage.shard.rewinds.has_pending:
            number = max(points)
            moves = points[number].moves
            self._start(
                {(move.topic, move.partition): move.previous for move in moves}, undoes=number
            )

    @rule()
    def move_the_coordinator(self) -> None:
        self.stage.reload()
        if self.rewind is not None and self.rewind.refused_with is not None:
            # Who asked asks again, and means the same rewind.
            self._start(self.request, undoes=self.undoes, is_again=True)

    @rule()
    def lose_a_write(self) -> None:
        # Whoever is in the middle of something must not take a lost write for a kept one.
        if self.rewind is None and not any(reader.is_waiting for reader in self.readers):
            self.stage.hold_log()
            self.stage.tick(1)
            self.stage.fail_log(ErrorCode.KAFKA_STORAGE_ERROR)

    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        """What was committed before a rewind is said once more after it."""
        if not self.stale:
            return
        member_id, generation, key, offset = data.draw(st.sampled_from(self.stale))
        before = self.stage.fetch(*key).committed_offset
        error = self.stage.commit(
            {key: offset},
            member_id=member_id,
            generation_id=generation,
            topic_id=id_of(TOPIC),
            version=10,
        )
        assert error != ErrorCode.NONE
        assert self.stage.fetch(*key).committed_offset == before

    def _start(
        self,
        to: dict[tuple[str, int], int | None],
        *,
        undoes: int = 0,
        is_again: bool = False,
    ) -> None:
        if not is_again:
            self.rewind_id = len(self.stage.calls).to_bytes(16, "big")
        self.request, self.undoes = to, undoes
        self.rewind = self.stage.rewind_call(to, undoes=undoes, rewind_id=self.rewind_id)
        self._look()

    def _look(self) -> None:
        """Whether the rewind is over."""
        call = self.rewind
        if call is None or call.is_parked or call.refused_with is not None:
            return
        self.rewind = None
        rewound = call.response(RewindResult)
        if rewound.error_code is not ErrorCode.NONE:
            # There is no such group yet, or no more.
            assert rewound.error_code is ErrorCode.GROUP_ID_NOT_FOUND, rewound
            return
        moved = {(move.topic, move.partition) for move in rewound.moves}
        for move in rewound.moves:
            self.ledger.expected[(move.topic, move.partition)] = max(move.offset, 0)
        for reader in self.readers:
            self.stale += (commit for commit in reader.commits if commit[2] in moved)
            reader.commits = [commit for commit in reader.commits if commit[2] not in moved]
            # Nobody has a partition of before any more, unless it reads nothing before it has heard
            # that it has not.
            is_reading = not reader.is_waiting or reader.kind == COOPERATIVE
            for key in moved & reader.positions.keys() if is_reading else ():
                assert reader.positions[key] == self.ledger.expected[key]

    def teardown(self) -> None:
        if not self.readers:
            return
        # Long enough for members that left, but are back with the coordinator that has moved.
        for _ in range(90):
            for reader in self.readers:
                reader.step()
            self.stage.tick(1_000)
            self._look()
        assert self.rewind is None
        assert not self.stage.shard.rewinds.has_pending
        # Whoever is fenced reads again what it had not committed yet, wherever that was.
        for reader in self.readers:
            assert ErrorCode.FENCED_MEMBER_EPOCH not in reader.refusals
        settle(self.stage, *self.readers)
        for reader in self.readers:
            reader.read(END)
        assert self.ledger.expected == {(TOPIC, index): END for index in range(3)}


TestCrowd = RewoundMembers.TestCase
TestCrowd.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

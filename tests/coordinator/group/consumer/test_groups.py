"""Consumer groups of a shard: replay, timers, and invariants under faults."""

from heapq import heapify, heappop, heappush
from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.coordinator.group.requests import FetchOffsets, UpdateTopics
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.timeline import TimelineTable
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetFetchResponseGroup
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatResponse
from tests.support.consumer_playbook import Consumer, Stage, id_of, image_of, settle

SLOW = GroupSettings(
    initial_rebalance_delay_ms=0, consumer=ConsumerGroupSettings(assignment_interval_ms=1_000)
)


def hard_state(stage: Stage) -> object:
    """The tables of every group."""
    found: dict[str, object] = {}
    for group in stage.shard.consumers:
        tables: dict[str, Any] = {}
        for slot in group.__slots__:
            table = getattr(group, slot)
            if isinstance(table, TimelineTable):
                tables[slot] = dict(table.items())
        found[group.group_id] = tables
    return found


def test_every_prefix_of_the_log_loads_a_state_that_the_group_had() -> None:
    stage = Stage({"a": 4, "b": 2})
    states: dict[int, object] = {}

    def remember() -> None:
        states[len(stage.log)] = hard_state(stage)

    first, second = Consumer(stage, "m", topics=("a", "b")), Consumer(stage, "n", instance="i")
    for member in (first, second, first, second, first, second):
        member.send_heartbeat()
        remember()
    stage.topics({"a": 5, "b": 2})
    remember()
    settle(first, second)
    remember()
    stage.send_heartbeat("x", regex="b.*", names=["b"])
    remember()
    stage.send_heartbeat("n", -2, instance="i")
    remember()
    stage.send_heartbeat("n2", instance="i")
    remember()
    stage.send_heartbeat("m", -1)
    remember()
    stage.tick(45_000)
    remember()
    stage.delete_group()
    remember()
    assert len(states) >= 10
    for count, state in states.items():
        assert hard_state(Stage(log=stage.log[:count])) == state, count


def test_members_continue_when_the_coordinator_moves() -> None:
    """Members get no error and no assignment."""
    stage = Stage({"a": 6})
    members = [Consumer(stage, name) for name in "mno"]
    for _ in range(6):
        for member in members:
            member.send_heartbeat()
            stage.reload()
    settle(*members)
    assert [member.errors for member in members] == [[], [], []]
    assert sorted(len(member.partitions) for member in members) == [2, 2, 2]


def test_every_member_gets_a_full_session_after_a_load() -> None:
    stage = Stage()
    stage.send_heartbeat("m")
    stage.tick(44_000)
    stage.reload()
    stage.tick(44_999)
    assert stage.consumers().member_count == 1
    stage.tick(1)
    assert stage.consumers().member_count == 0


def test_a_delayed_assignment_is_made_after_a_load() -> None:
    stage = Stage({"a": 2}, SLOW)
    stage.send_heartbeat("m")
    stage.send_heartbeat("n")
    assert stage.consumers().state == "Assigning"
    stage.reload()
    stage.tick(1)
    assert stage.consumers().state == "Reconciling"


def test_a_delayed_assignment_omits_a_deleted_topic() -> None:
    stage = Stage({"a": 2}, SLOW)
    stage.send_heartbeat("m")
    stage.send_heartbeat("n")
    stage.topics({})
    stage.tick(1_000)
    group = stage.consumers()
    assert group.epoch == group.target_epoch
    assert [dict(group.target(name)) for name in "mn"] == [{}, {}]


def test_a_failed_write_changes_nothing() -> None:
    stage = Stage({"a": 4})
    first = Consumer(stage, "m")
    settle(first)
    before = hard_state(stage)
    stage.hold_log()
    joining = stage.beat_call("n", topics=["a"], owned={}, timeout_ms=1_000)
    leaving = stage.beat_call("m", -1)
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert joining.refused_with == leaving.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert hard_state(stage) == before
    # Its session continues, and expires.
    stage.tick(44_999)
    assert stage.consumers().member_count == 1
    stage.tick(1)
    assert stage.consumers().member_count == 0


def test_offsets_are_committed_at_the_members_epoch() -> None:
    stage = Stage({"a": 4})
    member = Consumer(stage, "m")
    settle(member)
    commit = {("a", 0): 7}
    by = {"member_id": "m", "generation_id": member.epoch}
    assert stage.commit(commit, topic_id=id_of("a"), **by) == ErrorCode.NONE  # type: ignore[arg-type]
    assert stage.commit(commit, member_id="m", generation_id=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert stage.commit(commit, member_id="n", generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit(commit) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        stage.commit(commit, member_id="m", generation_id=1, version=8)
        == ErrorCode.UNSUPPORTED_VERSION
    )


def test_a_late_commit_is_valid_for_partitions_assigned_before() -> None:
    """KIP-1251: it was sent before the member received its new epoch."""
    stage = Stage({"a": 2})
    member = Consumer(stage, "m")
    settle(member)
    stage.topics({"a": 3})
    settle(member)
    assert member.epoch == 3
    late = {"member_id": "m", "generation_id": 2, "topic_id": id_of("a")}
    assert stage.commit({("a", 0): 7}, **late) == ErrorCode.NONE  # type: ignore[arg-type]
    for partition in (2, 9):
        error = stage.commit({("a", partition): 7}, **late)  # type: ignore[arg-type]
        assert error == ErrorCode.STALE_MEMBER_EPOCH


def test_any_client_may_commit_to_an_empty_group() -> None:
    stage = Stage()
    stage.send_heartbeat("m")
    stage.send_heartbeat("m", -1)
    assert stage.commit({("a", 0): 7}) == ErrorCode.NONE


def test_offsets_are_fetched_by_members_at_their_epoch_and_by_administrators() -> None:
    stage = Stage()
    stage.send_heartbeat("m")

    def error(member_id: str | None, epoch: int) -> int:
        fetch = FetchOffsets("g", None, False, member_id, epoch)
        return stage.ask(fetch, version=9).response(OffsetFetchResponseGroup).error_code

    assert error(None, -1) == ErrorCode.NONE
    assert error("m", 2) == ErrorCode.NONE
    assert error("m", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert error("n", 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_are_listed_with_their_type_and_state() -> None:
    stage = Stage({"a": 2}, SLOW)
    stage.stable(group="classic")
    stage.send_heartbeat("m", group="one")
    assert stage.list_groups(types=["Consumer"]).keys() == {"one"}
    assert stage.list_groups(types=["classic"]).keys() == {"classic"}
    listed = stage.list_groups()["one"]
    assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
    assert listed.group_state == "Stable"
    stage.send_heartbeat("n", group="one")
    assert stage.list_groups(states=["assigning"]).keys() == {"one"}
    stage.tick(1_000)
    assert stage.list_groups(states=["reconciling"]).keys() == {"one"}
    stage.send_heartbeat("m", -1, group="one")
    stage.send_heartbeat("n", -1, group="one")
    assert stage.list_groups(states=["empty"]).keys() == {"one"}


def test_describing_a_group_of_another_type_returns_an_error() -> None:
    stage = Stage()
    stage.stable(group="classic")
    stage.send_heartbeat("m", group="one")
    assert stage.describe("one").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.describe("one", version=5).group_state == "Dead"
    for group in ("classic", "nothing"):
        assert stage.describe_consumers(group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_is_described_with_its_assignment_and_its_target() -> None:
    stage = Stage({"a": 2})
    first, second = Consumer(stage, "m"), Consumer(stage, "n", rack="r")
    settle(first)
    second.send_heartbeat()
    described = stage.describe_consumers()
    assert described.group_state == "Reconciling"
    assert described.group_epoch == described.assignment_epoch == 3
    by_id = {member.member_id: member for member in described.members}

    def partitions(member_id: str) -> tuple[list[int], list[int]]:
        member = by_id[member_id]
        return (
            [index for t in member.assignment.topic_partitions for index in t.partitions],
            [index for t in member.target_assignment.topic_partitions for index in t.partitions],
        )

    assert partitions("m") == ([0, 1], [0])
    assert partitions("n") == ([], [1])
    assert by_id["n"].rack_id == "r"
    assert by_id["n"].member_type == 1
    # The member owns partitions until it has revoked them.
    first.send_heartbeat()
    by_id = {member.member_id: member for member in stage.describe_consumers().members}
    assert partitions("m") == ([0, 1], [0])
    settle(first, second)
    by_id = {member.member_id: member for member in stage.describe_consumers().members}
    assert (partitions("m"), partitions("n")) == (([0], [0]), ([1], [1]))


def test_a_group_with_members_is_not_deleted_and_one_without_is() -> None:
    stage = Stage()
    stage.send_heartbeat("m")
    assert stage.delete_group().error_code == ErrorCode.NON_EMPTY_GROUP
    stage.send_heartbeat("m", -1)
    stage.commit({("a", 0): 1})
    assert stage.delete_group().error_code == ErrorCode.NONE
    assert stage.list_groups() == {}
    stage.reload()
    assert stage.list_groups() == {}


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    stage = Stage({"a": 1, "b": 1})
    stage.send_heartbeat("m")
    for topic in "ab":
        stage.commit({(topic, 0): 1}, member_id="m", generation_id=2, topic_id=id_of(topic))
    deleted = stage.delete_offsets("a", 0)
    code = deleted.topics[0].partitions[0].error_code
    assert code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    stage.shard.settings = GroupSettings(offsets_retention_ms=1, retention_check_interval_ms=1)
    stage.reload()
    stage.tick(10)
    assert stage.fetch_all() == {("a", 0): 1}


def test_an_empty_group_is_deleted_with_its_last_offset() -> None:
    settings = GroupSettings(offsets_retention_ms=1_000, retention_check_interval_ms=500)
    stage = Stage(settings=settings)
    stage.send_heartbeat("m")
    stage.commit({("a", 0): 1}, member_id="m", generation_id=1, topic_id=id_of("a"))
    stage.send_heartbeat("m", -1)
    stage.tick(400)
    assert stage.list_groups().keys() == {"g"}
    stage.tick(3_000)
    assert stage.list_groups() == {}


def test_only_groups_that_subscribe_to_a_topic_react_to_its_change() -> None:
    stage = Stage({"a": 1, "b": 1})
    stage.send_heartbeat("m", group="one", topics=["a"])
    stage.send_heartbeat("m", group="two", topics=["b"])
    stage.topics({"a": 1, "b": 2})
    assert (stage.consumers("one").epoch, stage.consumers("two").epoch) == (2, 3)
    stage.topics({"a": 1})
    assert (stage.consumers("one").epoch, stage.consumers("two").epoch) == (2, 4)


def test_members_are_counted_over_all_groups_also_after_a_revert() -> None:
    stage = Stage()
    for group in ("one", "two"):
        stage.send_heartbeat("m", group=group)
    assert stage.shard.consumers.member_count == 2
    stage.hold_log()
    stage.beat_call("n", topics=["a"], owned={}, timeout_ms=1_000)
    assert stage.shard.consumers.member_count == 3
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert stage.shard.consumers.member_count == 2
    stage.send_heartbeat("m", -1, group="one")
    stage.reload()
    assert stage.shard.consumers.member_count == 1


def test_two_hundred_members_reconcile_a_thousand_partitions_within_three_seconds() -> None:
    """By the clock of the playbook: members send heartbeats at the interval of the response."""
    count = 200
    stage = Stage({"a": 1_000}, GroupSettings())
    stage.shard.member_count_total = count
    members = [Consumer(stage, f"m{at}") for at in range(count)]
    start_ms = stage.now_ms
    due = [(start_ms + at, at) for at in range(count)]
    heapify(due)
    while not all(member.partitions for member in members):
        at_ms, at = heappop(due)
        stage.tick(max(at_ms - stage.now_ms, 0))
        members[at].send_heartbeat()
        heappush(due, (stage.now_ms + members[at].interval_ms, at))
        assert stage.now_ms < start_ms + 3_000
    assert stage.consumers().state == "Stable"
    assert {len(member.partitions) for member in members} == {5}


def test_topics_that_changed_while_the_coordinator_moved_are_found_by_the_next_one() -> None:
    stage = Stage({"a": 3, "b": 1})
    stage.send_heartbeat("m", topics=["a", "b"])
    for epoch, topics in ((2, {"a": 3, "b": 1}), (3, {"a": 3}), (4, {"a": 4}), (5, {})):
        stage.image = image_of(topics)
        stage.reload()
        stage.ask(UpdateTopics(None, {}))
        group = stage.consumers()
        assert group.epoch == epoch
        stage.tick(1_000)
        expected = {id_of(name): frozenset(range(count)) for name, count in topics.items()}
        assert group.target("m") == expected


class Members(RuleBasedStateMachine):
    """Members that join, leave, stop sending heartbeats and lose responses, a coordinator that
    crashes and fails to write, and topics that grow. Two members never read the same partition."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"a": 4, "b": 3}
        self.stage = Stage(self.sizes)
        self.members: dict[str, Consumer] = {}
        self.made_count = 0

    @rule(topics=st.sampled_from([("a",), ("b",), ("a", "b")]))
    @precondition(lambda self: len(self.members) < 5)
    def come(self, topics: tuple[str, ...]) -> None:
        self.made_count += 1
        name = f"m{self.made_count}"
        self.members[name] = Consumer(self.stage, name, topics=topics)

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def send_heartbeat(self, data: st.DataObject) -> None:
        self.members[data.draw(st.sampled_from(sorted(self.members)))].send_heartbeat()

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def lose_response(self, data: st.DataObject) -> None:
        """The client repeats its request with all fields."""
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        call = member.call()
        assert not call.is_parked
        again = self.stage.beat_call(
            member.member_id,
            member.epoch,
            topics=member.topics,
            owned={name: sorted(indexes) for name, indexes in member.owned.items() if indexes},
            timeout_ms=30_000,
        )
        member.hear(again.response(ConsumerGroupHeartbeatResponse))

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def crash(self, data: st.DataObject) -> None:
        """The member sends nothing more and stops reading."""
        del self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def leave(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        if member.epoch:
            self.stage.send_heartbeat(member.member_id, -1)

    @rule(duration_ms=st.sampled_from([100, 5_000, 31_000]))
    def wait(self, duration_ms: int) -> None:
        """Members without heartbeats for a session timeout have stopped reading, as clients do."""
        self.stage.tick(duration_ms)
        group = self.stage.shard.consumers.get("g")
        for name in list(self.members):
            member = self.members[name]
            if member.epoch and (group is None or group.member(name) is None):
                member.owned = {}

    @rule()
    def move(self) -> None:
        self.stage.reload()

    @rule(topic=st.sampled_from("ab"))
    def grow(self, topic: str) -> None:
        self.sizes = {**self.sizes, topic: min(self.sizes[topic] + 1, 9)}
        self.stage.topics(self.sizes)

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def fail_to_write(self, data: st.DataObject) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        self.stage.hold_log()
        call = member.call()
        self.stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
        if call.refused_with is None:
            member.hear(call.response(ConsumerGroupHeartbeatResponse))

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        read = [each for member in self.members.values() for each in member.partitions]
        assert len(read) == len(set(read)), {k: m.partitions for k, m in self.members.items()}

    @invariant()
    def a_load_finds_what_is_there(self) -> None:
        assert hard_state(Stage(log=self.stage.log)) == hard_state(self.stage)

    def teardown(self) -> None:
        """Without further faults the group becomes Stable: a subscriber reads each partition."""
        self.stage.tick(46_000)
        for member in self.members.values():
            member.epoch, member.owned = 0, {}
        members = list(self.members.values())
        if not members:
            return
        settle(*members, rounds=40)
        read = {each for member in members for each in member.partitions}
        wanted = {
            (name, index)
            for member in members
            for name in member.topics
            for index in range(self.sizes[name])
        }
        assert read == wanted
        assert self.stage.consumers().state == "Stable"


TestMembers = Members.TestCase
TestMembers.settings = hypothesis_settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

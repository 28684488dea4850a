"""All streams groups of a shard: timers, offsets, other types of groups, and the log."""

import random

import pytest

from odradek.coordinator.group.requests import CommitInTransaction, UpdateTopics
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.support.streams_playbook import (
    REBALANCE_TIMEOUT_MS,
    STANDBY,
    STREAMS,
    LagReportingThread,
    StreamsStage,
    StreamsThread,
    settle_threads,
)


def stored_state(stage: StreamsStage) -> object:
    """The state of a group that is in the log."""
    group = stage.shard.streams.get("g")
    if group is None:
        return None
    return (
        group.stored_epoch,
        group.target_epoch,
        group.assigned_at_ms,
        group.topology,
        {
            member_id: (member, group.current(member_id), group.target(member_id))
            for member_id, member in group.members()
        },
        {
            (name, index, process): group.held_count(name, index, process)
            for name in "01"
            for index in range(3)
            for process in ("p-a", "p-b", "p-c")
        },
        {(name, index): group.runner(name, index) for name in "01" for index in range(3)},
        group.state,
    )


def test_every_prefix_of_the_log_loads_a_state_that_the_group_had() -> None:
    stage = StreamsStage(settings=STANDBY)
    pictures = {0: stored_state(stage)}
    threads = [StreamsThread(stage, name) for name in "abc"]

    def note() -> None:
        pictures[len(stage.log)] = stored_state(stage)

    for round_ in range(12):
        for thread in threads[: 1 + round_ // 3]:
            thread.send_heartbeat()
            note()
    stage.send_streams_heartbeat("b", -1)
    note()
    threads = [threads[0], threads[2]]
    for thread in threads * 3:
        thread.send_heartbeat()
        note()
    stage.topics({"in": 3, "words": 3, "counts": 2})
    note()
    stage.topics({"in": 3, "words": 3, "counts": 3})
    note()
    for instance_epoch in (0, -2):
        stage.send_streams_heartbeat("i", instance_epoch, instance="one")
        note()
    stage.send_streams_heartbeat("j", instance="one")
    note()
    stage.tick(45_000)
    note()
    stage.delete_group()
    note()
    assert pictures[len(stage.log)] is None
    assert len(pictures) > 20
    for length, expected in pictures.items():
        loaded = StreamsStage(settings=STANDBY, log=stage.log[:length])
        assert stored_state(loaded) == expected, f"a prefix of {length} records"


def test_members_continue_after_the_coordinator_has_moved() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    before = (a.active, b.active)
    stage.reload()
    settle_threads(a, b)
    assert (a.active, b.active) == before
    assert a.errors == b.errors == []


def test_a_topic_deleted_while_the_coordinator_moved_is_found_by_the_next_one() -> None:
    stage = StreamsStage()
    thread = StreamsThread(stage, "a")
    settle_threads(thread)
    epoch = stage.streams().epoch
    stage.reload()
    stage.ask(UpdateTopics(None, {}))
    assert stage.streams().epoch == epoch
    stage.image = type(stage.image).empty()
    stage.reload()
    stage.ask(UpdateTopics(None, {}))
    group = stage.streams()
    assert group.epoch == epoch + 1
    stage.tick(1_000)
    assert not group.target("a").active


def test_a_member_without_heartbeats_is_removed() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    settle_threads(a, b)
    stage.tick(40_000)
    a.send_heartbeat()
    stage.tick(10_000)
    assert stage.streams().member("b") is None
    settle_threads(a)
    assert len(a.active) == 6


def test_a_member_that_does_not_revoke_is_removed() -> None:
    stage = StreamsStage()
    a, b = StreamsThread(stage, "a"), StreamsThread(stage, "b")
    a.send_heartbeat()
    b.send_heartbeat()
    held = a.tasks
    a.send_heartbeat()
    for _ in range(REBALANCE_TIMEOUT_MS // 10_000 + 1):
        stage.tick(10_000)
        b.send_heartbeat()
        stage.send_streams_heartbeat("a", a.epoch, owned=held)
    assert stage.streams().member("a") is None
    settle_threads(b)
    assert len(b.active) == 6


def test_a_request_whose_write_fails_changes_nothing() -> None:
    stage = StreamsStage()
    a = StreamsThread(stage, "a")
    settle_threads(a)
    before = stored_state(stage)
    stage.hold_log()
    call = stage.streams_call("a", -1)
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stored_state(stage) == before
    stage.tick(46_000)
    assert stage.streams().is_empty, "its session goes on"


# -- offsets --------------------------------------------------------------------------------------


def commit(stage: StreamsStage, member: str, epoch: int, topic: str = "in", index: int = 0) -> int:
    return stage.commit({(topic, index): 5}, member_id=member, generation_id=epoch)


def test_commits_are_fenced_by_member_and_epoch() -> None:
    stage = StreamsStage()
    m = StreamsThread(stage, "m")
    settle_threads(m)
    assert commit(stage, "m", m.epoch) == ErrorCode.NONE
    assert commit(stage, "x", m.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(stage, "m", m.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(stage, "m", m.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(stage, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    old = stage.commit({("in", 0): 5}, member_id="m", generation_id=m.epoch, version=8)
    assert old == ErrorCode.UNSUPPORTED_VERSION
    stage.send_streams_heartbeat("m", -1)
    assert commit(stage, "", -1) == ErrorCode.NONE


def test_a_commit_of_an_older_epoch_is_valid_for_tasks_assigned_before_it() -> None:
    stage = StreamsStage()
    a = StreamsThread(stage, "a")
    settle_threads(a)
    first = a.epoch
    b = StreamsThread(stage, "b")
    settle_threads(a, b)
    assert a.epoch > first
    [kept] = [index for name, index in a.active if name == "0"][:1]
    [gone] = [index for name, index in b.active if name == "0"][:1]
    assert commit(stage, "a", first, "in", kept) == ErrorCode.NONE
    assert commit(stage, "a", first, "in", gone) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(stage, "a", first, "elsewhere", kept) == ErrorCode.STALE_MEMBER_EPOCH


def test_commits_in_transactions_are_fenced_likewise() -> None:
    stage = StreamsStage()
    a = StreamsThread(stage, "a")
    settle_threads(a)
    first = a.epoch
    b = StreamsThread(stage, "b")
    settle_threads(a, b)
    [kept] = [index for name, index in a.active if name == "0"][:1]
    [gone] = [index for name, index in b.active if name == "0"][:1]

    def commit_in_transaction(member_id: str, epoch: int, index: int) -> int:
        partition = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=5)
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=7,
            producer_epoch=0,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name="in", partitions=[partition])],
        )
        call = stage.ask(CommitInTransaction(request, is_verified=True), version=6)
        return call.response(TxnOffsetCommitResponse).topics[0].partitions[0].error_code

    assert commit_in_transaction("a", a.epoch, kept) == ErrorCode.NONE
    assert commit_in_transaction("a", first, kept) == ErrorCode.NONE
    assert commit_in_transaction("a", first, gone) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_in_transaction("a", a.epoch + 1, kept) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_in_transaction("x", a.epoch, kept) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in_transaction("", -1, kept) == ErrorCode.NONE


def test_offset_fetches_are_fenced_except_of_administrators() -> None:
    stage = StreamsStage()
    m = StreamsThread(stage, "m")
    settle_threads(m)
    family = stage.shard.streams
    assert family.fetch_error("g", None, -1) is ErrorCode.NONE
    assert family.fetch_error("g", "m", m.epoch) is ErrorCode.NONE
    assert family.fetch_error("g", "m", m.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert family.fetch_error("g", "x", m.epoch) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_source_topics_do_not_expire() -> None:
    stage = StreamsStage()
    m = StreamsThread(stage, "m")
    settle_threads(m)
    assert stage.shard.streams.topic_names("g") == {"in", "words"}
    stage.send_streams_heartbeat("m", -1)
    assert stage.shard.streams.topic_names("g") == set()


# -- other kinds ----------------------------------------------------------------------------------


def test_an_empty_classic_group_becomes_a_streams_group_with_its_offsets() -> None:
    stage = StreamsStage()
    assert stage.commit({("in", 0): 5}) == ErrorCode.NONE
    assert stage.send_streams_heartbeat("m").error_code == ErrorCode.NONE
    assert stage.shard.directory.group_type_of("g") == "streams"
    assert stage.fetch("in", 0).committed_offset == 5


def test_another_type_of_group_may_take_the_id_of_an_empty_classic_group() -> None:
    stage = StreamsStage(
        settings=GroupSettings(initial_rebalance_delay_ms=0, streams=STREAMS.streams)
    )
    joined = stage.join("", version=3).joined
    stage.sync(joined.member_id, 1, {joined.member_id: b""})
    assert stage.send_streams_heartbeat("m").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stage.leave(MemberIdentity(member_id=joined.member_id))
    assert stage.send_streams_heartbeat("m").error_code == ErrorCode.NONE
    assert "g" not in stage.shard.classic
    stage.reload()
    assert stage.shard.directory.group_type_of("g") == "streams"


def test_groups_of_other_types_are_independent() -> None:
    stage = StreamsStage()
    stage.send_heartbeat("m", group="c", topics=["in"])
    refused = stage.send_streams_heartbeat("m", group="c")
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Group c is not a streams group."
    stage.send_streams_heartbeat("m")
    assert stage.send_heartbeat("x").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.join("", version=3).joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.heartbeat("m", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.describe_streams("c").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.describe_streams("none").error_message == "Group none not found."


def test_a_classic_group_may_take_the_id_of_an_empty_streams_group() -> None:
    stage = StreamsStage(
        settings=GroupSettings(initial_rebalance_delay_ms=0, streams=STREAMS.streams)
    )
    stage.send_streams_heartbeat("m")
    stage.send_streams_heartbeat("m", -1)
    assert stage.join("", version=3).joined.error_code == ErrorCode.NONE
    assert "g" not in stage.shard.streams
    stage.reload()
    assert "g" not in stage.shard.streams


def test_a_group_is_listed_and_deleted_when_it_is_empty() -> None:
    stage = StreamsStage()
    stage.send_streams_heartbeat("m")
    listed = stage.list_groups()["g"]
    assert (listed.group_type, listed.protocol_type, listed.group_state) == (
        "streams",
        "streams",
        "Stable",
    )
    assert stage.delete_group().error_code == ErrorCode.NON_EMPTY_GROUP
    stage.send_streams_heartbeat("m", -1)
    assert stage.delete_group().error_code == ErrorCode.NONE
    assert "g" not in stage.shard.streams
    assert stage.list_groups() == {}


# -- at random ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_random_lives_keep_one_owner_for_every_task(seed: int) -> None:
    random_ = random.Random(seed)
    stage = StreamsStage(settings=random_.choice([STREAMS, STANDBY]))
    threads: dict[str, StreamsThread] = {}
    for turn in range(150):
        name = random_.choice("abcdef")
        thread = threads.get(name)
        roll = random_.random()
        if thread is None:
            kind = random_.choice([StreamsThread, LagReportingThread])
            threads[name] = kind(stage, name, process=random_.choice(["p", "q", "r"]))
            threads[name].send_heartbeat()
        elif roll < 0.08:
            stage.send_streams_heartbeat(name, -1)
            del threads[name]
        elif roll < 0.12:
            stage.reload()
        elif roll < 0.2:
            # A response is lost: the member repeats the request with its tasks.
            if thread.epoch:
                stage.streams_call(name, thread.epoch, owned=thread.tasks)
        else:
            if isinstance(thread, LagReportingThread):
                thread.lag = random_.choice([None, 50_000, 0])
            thread.send_heartbeat()
        seen: dict[tuple[str, int], str] = {}
        held: set[tuple[str, str, int]] = set()
        for owner, each in threads.items():
            for task in each.active:
                assert task not in seen, f"seed {seed}, turn {turn}: {owner} and {seen[task]}"
                seen[task] = owner
            for task in each.active | each.standby | each.warming:
                key = (each.process, *task)
                assert key not in held, f"seed {seed}, turn {turn}: {key} twice in a process"
                held.add(key)
    for each in threads.values():
        if isinstance(each, LagReportingThread):
            each.lag = 0
    if threads:
        settle_threads(*threads.values(), rounds=40)
        assert len({task for each in threads.values() for task in each.active}) == 6

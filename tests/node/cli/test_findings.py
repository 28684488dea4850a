"""Findings about groups and partitions."""

from dataclasses import replace

import pytest

from odradek.coordinator.group.events import EventKind
from odradek.node.cli.findings import (
    IDLE_MS,
    OFTEN_COUNT,
    UNCOMMITTED_MS,
    BlockingTransaction,
    PartitionView,
    WaitingArchive,
    duration_text,
    group_findings,
    no_reader_reasons,
    partition_findings,
    reader_findings,
)
from odradek.protocol.messages.diagnostics import (
    ExplainedCommit,
    ExplainedCommits,
    ExplainedEvent,
    ExplainedGroup,
    ExplainedLock,
    ExplainedMember,
    ExplainedReader,
    ExplainedSharePartition,
    MemberProgress,
    RebalanceWait,
)
from odradek.protocol.messages.partitions import TopicPartitions

NOW_MS = 1_700_000_000_000
PLACE = ("t", 0)
VIEW = PartitionView(
    partition_id=PLACE,
    leader=1,
    replicas=(1,),
    in_sync=(1,),
    log_start_offset=0,
    last_stable_offset=10,
    high_watermark=10,
    log_end_offset=10,
)


def member(**given: object) -> ExplainedMember:
    owned = [TopicPartitions(name="t", partitions=[0])]
    found = ExplainedMember(
        member_id="m",
        client_id="app",
        client_host="/10.0.0.1",
        state=MemberProgress.STABLE,
        owned=owned,
    )
    for name, value in given.items():
        setattr(found, name, value)
    return found


def group(*members: ExplainedMember, committed: int | None = 4, **given: object) -> ExplainedGroup:
    commits = []
    if committed is not None:
        commit = ExplainedCommit(
            partition_index=0, committed_offset=committed, committed_at=NOW_MS - 1_000
        )
        commits = [ExplainedCommits(name="t", partitions=[commit])]
    found = ExplainedGroup(
        group_id="g",
        group_type="consumer",
        group_state="Stable" if members else "Empty",
        members=list(members),
        commits=commits,
    )
    for name, value in given.items():
        setattr(found, name, value)
    return found


def reader(**given: object) -> ExplainedReader:
    found = ExplainedReader(client_id="app", client_host="/10.0.0.1", offset=4)
    for name, value in given.items():
        setattr(found, name, value)
    return found


def reading(found: ExplainedGroup, view: PartitionView = VIEW) -> list[str]:
    return [finding.what for finding in reader_findings(found, {PLACE: view}, NOW_MS)]


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0 ms"), (1_999, "1999 ms"), (2_000, "2 s"), (150_000, "2 min"), (8_000_000, "2 h")],
)
def test_durations_are_shown_in_the_largest_fitting_unit(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_a_group_without_members_does_not_read() -> None:
    assert no_reader_reasons(group()) == ["the group has no members"]
    [finding] = group_findings(group(), NOW_MS)
    assert finding.what == "The group has no members."
    assert finding.advice == "Start its consumers."
    [ephemeral] = group_findings(group(ttl_ms=60_000), NOW_MS)
    assert "ephemeral" in ephemeral.what


def test_a_stable_group_gives_no_finding() -> None:
    assert group_findings(group(member()), NOW_MS) == []
    assert no_reader_reasons(group(member())) == []


def test_the_initial_rebalance_delay_is_a_finding_with_its_config_key() -> None:
    waiting = group(
        member(state=MemberProgress.JOINED),
        group_state="PreparingRebalance",
        wait=RebalanceWait.INITIAL_REBALANCE_DELAY,
        since=NOW_MS - 1_000,
        deadline=NOW_MS + 2_000,
    )
    [finding] = group_findings(waiting, NOW_MS)
    assert "waits 2 s more" in finding.what
    assert "group.initial.rebalance.delay.ms=0" in finding.advice
    assert no_reader_reasons(waiting)[0].startswith("the group is PreparingRebalance")


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        (RebalanceWait.JOIN_GROUP, "to join"),
        (RebalanceWait.SYNC_GROUP, "to fetch their assignments"),
    ],
)
def test_members_that_delay_a_rebalance_are_named(wait: int, what: str) -> None:
    late = member(member_id="late", deadline=NOW_MS + 48_000)
    waiting = group(member(), late, wait=wait, since=NOW_MS - 12_000, deadline=NOW_MS + 48_000)
    [finding] = group_findings(waiting, NOW_MS)
    assert finding.what == (
        f"A rebalance began 12 s ago and waits for 1 of 2 members {what}: late (app at 10.0.0.1)."
        " They are removed in 48 s."
    )
    assert "max.poll.interval.ms" in finding.advice


def test_a_member_that_has_not_revoked_partitions_is_named() -> None:
    keeping = member(
        to_revoke=[TopicPartitions(name="t", partitions=[3, 4])], deadline=NOW_MS + 20_000
    )
    [finding] = group_findings(group(keeping), NOW_MS)
    assert finding.what == (
        "m (app at 10.0.0.1) has not revoked t-3, t-4 yet, and is removed in 20 s; other members"
        " wait for them."
    )


def test_a_member_that_has_not_fetched_its_assignment_is_named() -> None:
    behind = member(state=MemberProgress.EPOCH_BEHIND)
    assert group_findings(group(behind, since=NOW_MS - IDLE_MS + 1), NOW_MS) == []
    [finding] = group_findings(group(behind, since=NOW_MS - IDLE_MS), NOW_MS)
    assert "has not fetched the assignment" in finding.what


def test_frequent_rebalances_are_a_finding_with_their_reason() -> None:
    started = [
        ExplainedEvent(at=NOW_MS - at, kind=EventKind.REBALANCE_STARTED, reason=f"reason {at}")
        for at in range(OFTEN_COUNT, 0, -1)
    ]
    silent = ExplainedEvent(
        at=NOW_MS, kind=EventKind.MEMBER_EXPIRED, reason="m no heartbeat for 45000 ms"
    )
    assert group_findings(group(member(), events=started[1:]), NOW_MS) == []
    [finding] = group_findings(group(member(), events=[*started, silent]), NOW_MS)
    assert finding.what.startswith(
        "The group has rebalanced 5 times in 5 min, most recently: reason 1"
    )
    assert "session.timeout.ms" in finding.advice
    assert group_findings(group(member(), events=started), NOW_MS + 3_600_000) == []


# -- partitions -----------------------------------------------------------------------------------


def facts_of(view: PartitionView) -> list[str]:
    return [finding.what for finding in partition_findings(view)]


def test_a_healthy_partition_gives_no_finding() -> None:
    assert partition_findings(VIEW) == []


def test_a_partition_without_a_leader_and_an_isr_names_the_eligible_leaders() -> None:
    view = PartitionView(partition_id=PLACE, leader=-1, replicas=(1, 2), eligible=(1,))
    [finding] = partition_findings(view)
    assert "last in sync: 1" in finding.what
    assert finding.advice == "Start broker 1."


def test_a_partition_without_a_leader_names_the_brokers_to_start() -> None:
    view = PartitionView(partition_id=PLACE, leader=-1, replicas=(1, 2), in_sync=(2,))
    [finding] = partition_findings(view)
    assert "t-0 has no leader" in finding.what
    assert finding.what.endswith("Its replicas are on brokers 1, 2; last in sync: 2.")
    assert finding.advice == "Start broker 2."
    [finding] = partition_findings(replace(view, replicas=(2,), in_sync=()))
    assert finding.what.endswith("Its replica is on broker 2.")
    assert finding.advice == "Start broker 2."


def test_a_leader_that_does_not_answer_is_a_finding() -> None:
    [what] = facts_of(PartitionView(partition_id=PLACE, leader=3, replicas=(3,), in_sync=(3,)))
    assert what == "Broker 3, which leads t-0, did not answer."


def test_too_few_replicas_in_sync_are_a_finding_with_the_consequence() -> None:
    view = replace(VIEW, replicas=(1, 2, 3), in_sync=(1,), min_in_sync=2, log_end_offset=12)
    [finding] = partition_findings(view)
    assert "1 replicas in sync and needs 2" in finding.what
    assert "2 records cannot be read yet" in finding.what
    assert finding.advice.startswith("Start broker 2, 3")


def test_an_open_transaction_is_a_finding_with_its_age() -> None:
    held = BlockingTransaction(
        producer_id=7,
        since_offset=6,
        silent_ms=5_000,
        transactional_id="etl",
        state="Ongoing",
        age_ms=30_000,
        timeout_ms=60_000,
    )
    [finding] = partition_findings(replace(VIEW, last_stable_offset=6, transaction=held))
    assert finding.what == (
        "Consumers with read_committed stop at offset 6 of t-0, 4 records before the end:"
        " transaction 'etl' of producer 7 (Ongoing) is open for 30 s, silent for 5 s."
    )
    assert finding.advice == ("Have its producer commit or abort. Otherwise it is aborted in 30 s.")


def test_a_hanging_transaction_is_a_finding_with_the_command_to_end_it() -> None:
    held = BlockingTransaction(producer_id=7, since_offset=6, silent_ms=5_000)
    [finding] = partition_findings(replace(VIEW, last_stable_offset=6, transaction=held))
    assert "producer 7 is silent for 5 s" in finding.what
    assert "odradek txn abort t 0 --start-offset 6" in finding.advice


@pytest.mark.parametrize(
    ("code", "name", "advice"),
    [
        (29, "TOPIC_AUTHORIZATION_FAILED", "Allow its principal READ on the topic."),
        (1, "OFFSET_OUT_OF_RANGE", "The log has offsets 0 to 10"),
    ],
)
def test_refused_fetches_are_a_finding(code: int, name: str, advice: str) -> None:
    [finding] = partition_findings(replace(VIEW, readers=(reader(error_code=code, offset=99),)))
    assert finding.what == f"app at 10.0.0.1 fetches t-0 at offset 99 and gets {name}."
    assert finding.advice.startswith(advice)
    old = reader(error_code=code, idle_ms=IDLE_MS)
    assert partition_findings(replace(VIEW, readers=(old,))) == []


@pytest.mark.parametrize("code", [6, 74])
def test_a_fetch_refused_before_the_leader_moved_is_no_finding(code: int) -> None:
    refused = reader(error_code=code, offset=99)
    assert len(partition_findings(replace(VIEW, readers=(refused,)))) == 1
    gone_on = replace(refused, idle_ms=2_000)
    assert partition_findings(replace(VIEW, readers=(gone_on,))) == []


def test_refused_fetches_of_other_clients_are_no_finding_about_a_group() -> None:
    refused = replace(VIEW, readers=(reader(error_code=1, offset=99),))
    assert partition_findings(refused, {("app", "/10.0.0.2"), ("other", "/10.0.0.1")}) == []
    assert len(partition_findings(refused, {("app", "/10.0.0.1")})) == 1


# -- a group in a partition -----------------------------------------------------------------------


def test_a_member_that_reads_and_commits_gives_no_finding() -> None:
    assert reading(group(member()), replace(VIEW, readers=(reader(),))) == []


def test_a_member_without_lag_need_not_fetch() -> None:
    assert reading(group(member(), committed=10)) == []


def test_a_partition_without_an_owner_is_a_finding() -> None:
    assert reading(group(member(owned=[]))) == ["No member of the group owns t-0."]
    assert reading(group()) == []


def test_an_owner_that_has_never_fetched_is_a_finding() -> None:
    assert reading(group(member())) == ["m (app at 10.0.0.1) owns t-0 and does not fetch it."]
    other = reader(client_host="/10.0.0.2")
    assert reading(group(member()), replace(VIEW, readers=(other,))) != []


def test_a_paused_partition_and_an_application_that_does_not_poll_differ() -> None:
    paused = reader(idle_ms=60_000, fetch_idle_ms=100)
    assert reading(group(member()), replace(VIEW, readers=(paused,))) == [
        "m (app at 10.0.0.1) fetches other partitions, but has not fetched t-0 for 60 s."
    ]
    stuck = reader(idle_ms=60_000, fetch_idle_ms=60_000)
    assert reading(group(member()), replace(VIEW, readers=(stuck,))) == [
        "m (app at 10.0.0.1) has fetched nothing for 60 s."
    ]
    back = reader(idle_ms=100, fetch_idle_ms=100)
    assert reading(group(member()), replace(VIEW, readers=(stuck, back))) == []


def test_a_member_that_fetches_and_does_not_commit_is_a_finding() -> None:
    found = group(member())
    found.commits[0].partitions[0].committed_at = NOW_MS - UNCOMMITTED_MS
    ahead = replace(VIEW, readers=(reader(offset=9),))
    assert reading(found, ahead) == [
        "m (app at 10.0.0.1) fetches t-0 at offset 9, but its last commit, of 4, was 30 s ago."
    ]
    found.commits[0].partitions[0].committed_at = NOW_MS - UNCOMMITTED_MS + 1
    assert reading(found, ahead) == []


def test_a_member_that_reads_and_never_commits_is_a_finding() -> None:
    ahead = replace(VIEW, readers=(reader(offset=9),))
    assert reading(group(member(), committed=None), ahead) == [
        "m (app at 10.0.0.1) reads t-0, and nothing is committed there: the group's lag is counted"
        " from the start of the log."
    ]
    both = {place: replace(ahead, partition_id=place) for place in (PLACE, ("t", 1))}
    owner = member(owned=[TopicPartitions(name="t", partitions=[0, 1])])
    [finding] = reader_findings(group(owner, committed=None), both, NOW_MS)
    assert (finding.about, "reads t-0, t-1, and" in finding.what) == ("g", True)
    at_start = replace(VIEW, readers=(reader(offset=0),))
    assert reading(group(member(), committed=None), at_start) == []


def test_a_static_member_that_has_left_keeps_its_partitions() -> None:
    [what] = reading(group(member(state=MemberProgress.STATIC_LEFT, instance_id="i")))
    assert what == "t-0 is kept for m (i at 10.0.0.1), a static member that has left."


def test_records_that_were_deleted_unread_are_a_finding() -> None:
    view = replace(VIEW, log_start_offset=6, readers=(reader(),))
    [what] = reading(group(member()), view)
    assert what.startswith("2 records of t-0 were deleted before the group read them")


def test_an_offset_beyond_the_end_is_a_finding() -> None:
    [what] = reading(group(member(), committed=11))
    assert what.startswith("The group's offset in t-0 is 11, beyond its end at 10")


def test_an_offset_that_a_transaction_may_change_is_a_finding() -> None:
    found = group(member(), committed=10)
    found.commits[0].partitions[0].is_unstable = True
    [what] = reading(found)
    assert "UNSTABLE_OFFSET_COMMIT" in what


def test_partitions_that_the_group_does_not_read_give_no_finding() -> None:
    assert reading(group(member(owned=[]), committed=None)) == []


# -- a share group in a partition -----------------------------------------------------------------


def shared(**given: object) -> PartitionView:
    sharing = ExplainedSharePartition(group_id="g", start_offset=2, end_offset=6)
    for name, value in given.items():
        setattr(sharing, name, value)
    other = ExplainedSharePartition(group_id="other", acquired_count=1)
    return replace(VIEW, sharing=(sharing, other))


def test_the_member_that_has_acquired_records_of_a_share_group_is_named() -> None:
    lock = ExplainedLock(
        member_id="m", start_offset=2, end_offset=5, delivery_count=3, left_ms=12_000
    )
    found = group(member(), committed=None, group_type="share")
    assert reading(found, shared(acquired_count=4, locks=[lock])) == [
        "t-0 has 4 records acquired by members, the first by m (app at 10.0.0.1): offsets 2 to 4,"
        " delivery 3, locked for 12 s more."
    ]
    assert reading(found, shared(acquired_count=4, available_count=1, locks=[lock])) == []


def test_delayed_and_archiving_records_of_a_share_group_are_findings() -> None:
    found = group(member(), committed=None, group_type="share")
    assert reading(found, shared(delayed_count=1, archiving_count=2)) == [
        "t-0 has 1 record delayed until the next delivery.",
        "t-0 has 2 records being written to the dead-letter topic.",
    ]
    assert reading(found, shared()) == []


# -- an archive ------------------------------------------------------------------------------------


def test_retention_that_waits_for_the_group_of_an_archive_is_a_finding() -> None:
    def waiting(offset: int, held_bytes: int) -> list[str]:
        archive = WaitingArchive(group="pipe.orders", archived_offset=offset, held_bytes=held_bytes)
        return [found.what for found in partition_findings(replace(VIEW, archive=archive))]

    assert waiting(7, 2_500_000) == [
        "Retention of t-0 waits for group pipe.orders at offset 7: it keeps 2.5 MB that would be"
        " deleted otherwise (odradek.archive.group)."
    ]
    assert waiting(-1, 10) == [
        "Retention of t-0 waits for group pipe.orders, which has committed nothing: it keeps 10 B"
        " that would be deleted otherwise (odradek.archive.group)."
    ]
    assert waiting(7, 0) == []

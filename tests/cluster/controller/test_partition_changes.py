"""The rules for one partition: single changes, and invariants of random ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.cluster.controller.partition_changes import (
    ElectionRules,
    LeaderElection,
    PartitionChangeSet,
    changed_partition,
    is_reassignment_complete,
)
from odradek.cluster.metadata.image import NO_LEADER, ConfigResourceType, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
from tests.support.controller_harness import ControllerHarness, topic_id

BROKERS = range(1, 7)


def rules(
    *active: int, least: int = 1, unclean: bool = False, has_elr: bool = False
) -> ElectionRules:
    return ElectionRules(
        active=frozenset(active),
        min_insync_replicas=least,
        is_unclean_allowed=unclean,
        has_elr=has_elr,
    )


def partition(
    *in_sync: int,
    leader: int | None = None,
    replicas: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
) -> PartitionImage:
    if leader is None:
        leader = in_sync[0] if in_sync else NO_LEADER
    return PartitionImage(replicas, in_sync, leader, 5, 9, elr=elr, last_known_elr=last_known)


def changed(before: PartitionImage, law: ElectionRules, **change: object) -> PartitionImage:
    after = changed_partition(before, law, **change)  # type: ignore[arg-type] # see its signature
    assert after is not None
    assert after.partition_epoch == 10
    return after


# -- who leads ---------------------------------------------------------------------------------


def test_the_first_active_member_of_the_isr_becomes_leader() -> None:
    after = changed(partition(1, 2, 3), rules(2, 3), in_sync=(2, 3))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (2, 6, (2, 3))
    after = changed(partition(1, 3), rules(2, 3), in_sync=(3,))
    assert after.leader == 3, "2 is there, but not in sync"


def test_removing_a_follower_from_the_isr_keeps_the_leader_epoch() -> None:
    after = changed(partition(1, 2, 3), rules(1, 3), in_sync=(1, 3))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (1, 5, (1, 3))


def test_an_inactive_leader_is_replaced_even_if_it_is_in_sync() -> None:
    after = changed(partition(1, 2), rules(2))
    assert (after.leader, after.in_sync_replicas) == (2, (1, 2))


def test_an_unchanged_partition_makes_no_record() -> None:
    assert changed_partition(partition(1, 2), rules(1, 2)) is None
    assert changed_partition(partition(1, leader=NO_LEADER), rules(2, 3)) is None


def test_without_eligible_leaders_the_last_isr_waits_for_its_return() -> None:
    after = changed(partition(1), rules(2, 3), in_sync=())
    assert (after.leader, after.in_sync_replicas, after.leader_epoch) == (NO_LEADER, (1,), 6)
    again = changed_partition(after, rules(1, 2, 3))
    assert again is not None
    assert (again.leader, again.in_sync_replicas, again.leader_epoch) == (1, (1,), 7)


def test_an_unclean_election_elects_any_active_replica_as_the_only_isr_member() -> None:
    for law, election in (
        (rules(2, 3, unclean=True), LeaderElection.ONLINE),
        (rules(2, 3), LeaderElection.UNCLEAN),
    ):
        after = changed(partition(1), law, in_sync=(), election=election)
        assert (after.leader, after.in_sync_replicas) == (2, (2,))


def test_there_is_no_unclean_election_while_a_replica_is_in_sync() -> None:
    after = changed(partition(1, 3), rules(2, 3, unclean=True), in_sync=(3,))
    assert after.leader == 3


@pytest.mark.parametrize(
    ("in_sync", "active", "leader"),
    [((2, 1), (1, 2, 3), 1), ((2, 3), (1, 2, 3), 2), ((2, 1), (2, 3), 2)],
    ids=["in sync", "not in sync", "not there"],
)
def test_a_preferred_election_takes_the_preferred_leader_if_it_may_lead(
    in_sync: tuple[int, ...], active: tuple[int, ...], leader: int
) -> None:
    before = partition(*in_sync)
    after = changed_partition(before, rules(*active), election=LeaderElection.PREFERRED)
    assert (after or before).leader == leader


# -- eligible leader replicas (KIP-966) ----------------------------------------------------------


def test_a_replica_that_leaves_a_too_small_isr_stays_eligible() -> None:
    law = rules(1, 2, 3, least=2, has_elr=True)
    enough = changed(partition(1, 2, 3), law, in_sync=(1, 2))
    assert (enough.elr, enough.in_sync_replicas) == ((), (1, 2)), "3 misses what is committed now"
    small = changed(partition(1, 2), law, in_sync=(1,))
    assert small.elr == (2,)
    at_once = changed(partition(1, 2, 3), law, in_sync=(1,))
    assert at_once.elr == (2, 3)


def test_an_eligible_leader_is_elected_when_the_isr_is_empty() -> None:
    law = rules(2, 3, least=2, has_elr=True)
    after = changed(partition(1, elr=(2,)), law, in_sync=())
    assert (after.leader, after.in_sync_replicas, after.elr) == (2, (2,), (1,))


def test_eligibility_ends_when_the_isr_is_large_enough() -> None:
    after = changed(partition(elr=(1, 2)), rules(2, least=1, has_elr=True))
    assert (after.leader, after.in_sync_replicas, after.elr) == (2, (2,), ())


def test_an_empty_isr_keeps_the_last_known_leader() -> None:
    law = rules(3, least=2, has_elr=True)
    after = changed(partition(1, elr=(2,)), law, in_sync=())
    assert (after.leader, after.in_sync_replicas) == (NO_LEADER, ())
    assert (after.elr, after.last_known_elr) == ((1, 2), (1,))
    back = changed_partition(after, rules(2, least=2, has_elr=True))
    assert back is not None
    assert (back.leader, back.in_sync_replicas, back.elr) == (2, (2,), (1,))


def test_eligible_leaders_are_cleared_once_the_isr_is_large_enough() -> None:
    before = partition(1, elr=(2,), last_known=(2,))
    after = changed(before, rules(1, 2, 3, least=2, has_elr=True), in_sync=(1, 3))
    assert (after.elr, after.last_known_elr) == ((), ())
    lower = changed(before, rules(1, 2, 3, least=1, has_elr=True))
    assert lower.elr == ()


def test_a_partition_with_few_replicas_needs_no_more_than_it_has() -> None:
    law = rules(1, 2, least=3, has_elr=True)
    after = changed(partition(1, 2, replicas=(1, 2)), law, in_sync=(1,))
    assert after.elr == (2,)
    again = changed_partition(after, law, in_sync=(1, 2))
    assert again is not None
    assert again.elr == ()


def test_the_last_known_leader_is_elected_without_eligible_leaders() -> None:
    law = rules(1, 2, least=2, has_elr=True)
    before = partition(elr=(), last_known=(2,))
    after = changed(before, law)
    assert (after.leader, after.in_sync_replicas, after.last_known_elr) == (2, (2,), ())
    others_are_eligible = partition(elr=(3,), last_known=(2,))
    assert changed_partition(others_are_eligible, law) is None


# -- logs that have suffered ---------------------------------------------------------------------


@pytest.mark.parametrize("has_elr", [False, True])
def test_after_an_unclean_shutdown_a_replica_is_neither_in_sync_nor_eligible(has_elr: bool) -> None:
    law = rules(1, 3, least=3, has_elr=has_elr)
    after = changed(partition(1, 2), law, unclean_shutdown={2})
    assert (after.in_sync_replicas, after.elr) == ((1,), ())
    if has_elr:
        after = changed(partition(1, elr=(2, 3)), law, unclean_shutdown={2})
        assert after.elr == (3,)


def test_the_last_isr_member_stays_the_candidate_after_an_unclean_shutdown() -> None:
    after = changed(partition(1), rules(2, 3), unclean_shutdown={1})
    assert (after.leader, after.in_sync_replicas) == (NO_LEADER, (1,))
    with_elr = changed(partition(1), rules(2, 3, has_elr=True), unclean_shutdown={1})
    assert (with_elr.in_sync_replicas, with_elr.elr, with_elr.last_known_elr) == ((), (), (1,))


@pytest.mark.parametrize("has_elr", [False, True])
def test_a_replica_with_an_erased_log_is_not_elected(has_elr: bool) -> None:
    after = changed(partition(1), rules(2, 3, has_elr=has_elr), erased={1})
    assert (after.leader, after.in_sync_replicas, after.last_known_elr) == (NO_LEADER, (), ())
    assert changed_partition(after, rules(1, 2, 3, has_elr=has_elr)) is None
    by_hand = changed_partition(
        after, rules(1, 2, 3, has_elr=has_elr), election=LeaderElection.UNCLEAN
    )
    assert by_hand is not None
    assert by_hand.leader == 1


def test_erased_replicas_leave_an_isr_and_inactive_ones_stay() -> None:
    after = changed(partition(1, 2), rules(3), in_sync=(1,), erased={1})
    assert (after.in_sync_replicas, after.leader) == ((2,), NO_LEADER)


# -- reassignment --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_sync", "adding", "removing", "is_complete"),
    [
        ((1, 2, 3), (3,), (1,), True),
        ((1, 2), (3,), (1,), False),
        ((1,), (), (1,), False),
        ((1, 2), (), (1,), True),
        ((3,), (3,), (1, 2), True),
    ],
)
def test_a_reassignment_is_complete_when_the_added_are_in_sync_and_somebody_remains(
    in_sync: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...], is_complete: bool
) -> None:
    assert is_reassignment_complete(in_sync, adding, removing) is is_complete


def test_completing_a_reassignment_removes_replicas_and_increments_the_leader_epoch() -> None:
    before = PartitionImage(
        (2, 3, 1), (1, 2), 2, 5, 9, adding_replicas=(3,), removing_replicas=(1,)
    )
    after = changed(before, rules(1, 2, 3), in_sync=(1, 2, 3))
    assert (after.replicas, after.in_sync_replicas) == ((2, 3), (2, 3))
    assert (after.adding_replicas, after.removing_replicas) == ((), ())
    assert (after.leader, after.leader_epoch) == (2, 6), "1 must not follow on unnoticed"


def test_completing_elects_a_leader_when_the_leader_is_removed() -> None:
    before = PartitionImage(
        (2, 3, 1), (1,), 1, 5, 9, adding_replicas=(2, 3), removing_replicas=(1,)
    )
    half = changed(before, rules(1, 2, 3), in_sync=(1, 2))
    assert (half.leader, half.replicas) == (1, (2, 3, 1))
    after = changed_partition(half, rules(1, 2, 3), in_sync=(1, 2, 3))
    assert after is not None
    assert (after.leader, after.replicas, after.in_sync_replicas) == (2, (2, 3), (2, 3))


# -- anything ------------------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn, has_elr: bool) -> PartitionImage:
    """A partition in a state that the rules allow."""
    replicas = tuple(draw(st.permutations(BROKERS))[: draw(st.integers(1, 5))])
    states = draw(st.lists(st.sampled_from("ieo"), min_size=len(replicas), max_size=len(replicas)))
    by_state = {
        kind: tuple(r for r, state in zip(replicas, states, strict=True) if state == kind)
        for kind in "ieo"
    }
    in_sync = by_state["i"]
    elr = by_state["e"] if has_elr else ()
    if not in_sync and not has_elr:
        in_sync = replicas[:1]
    leader = draw(st.sampled_from((NO_LEADER, *in_sync)))
    last_known = draw(st.sampled_from(((), replicas[:1]))) if has_elr and not in_sync else ()
    return PartitionImage(
        replicas, in_sync, leader, draw(st.integers(0, 9)), draw(st.integers(0, 9)), elr, last_known
    )


BROKER_SETS = st.frozensets(st.sampled_from(list(BROKERS)))


@given(
    st.data(),
    BROKER_SETS,
    BROKER_SETS,
    BROKER_SETS,
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(LeaderElection),
)
@settings(deadline=None, max_examples=600)
def test_a_leader_always_has_all_committed_records(
    data: st.DataObject,
    active: frozenset[int],
    shutting_down: frozenset[int],
    unclean_shutdown: frozenset[int],
    least: int,
    is_unclean_allowed: bool,
    has_elr: bool,
    election: LeaderElection,
) -> None:
    before = data.draw(partitions(has_elr))
    law = rules(*(active - shutting_down), least=least, unclean=is_unclean_allowed, has_elr=has_elr)
    in_sync = tuple(r for r in before.in_sync_replicas if r not in shutting_down)
    after = changed_partition(
        before, law, in_sync=in_sync, unclean_shutdown=unclean_shutdown, election=election
    )
    if after is None:
        return
    # While the ISR was large enough, more was committed than the eligible ones have.
    was_enough = len(before.in_sync_replicas) >= min(least, len(before.replicas))
    had_all = {*before.in_sync_replicas, *(() if was_enough else before.elr)} - unclean_shutdown
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
    assert set(after.in_sync_replicas) <= set(after.replicas)
    assert after.leader in (NO_LEADER, *after.in_sync_replicas)
    assert not set(after.elr) & set(after.in_sync_replicas)
    is_unclean = is_unclean_allowed or election is LeaderElection.UNCLEAN
    if after.leader not in (NO_LEADER, before.leader):
        assert after.leader in law.active
        if had_all & law.active:
            assert after.leader in had_all, "an unclean election is the last resort"
        is_last_known = has_elr and not had_all - shutting_down
        if not is_unclean and not is_last_known:
            assert after.leader in had_all
    if after.elr:
        assert has_elr
        assert len(after.in_sync_replicas) < min(least, len(after.replicas))
        if not is_unclean:
            assert set(after.elr) <= had_all
    if not after.in_sync_replicas:
        assert has_elr


# -- several partitions ----------------------------------------------------------------------------


def test_several_changes_of_a_partition_make_one_record() -> None:
    harness = ControllerHarness(brokers=3)
    harness.place("t", 1, PartitionImage((0, 1, 2), (0, 1, 2), 0), PartitionImage((1,), (1,), 1))
    decisions = PartitionChangeSet(harness.image, active={0, 1, 2}, node_id=0, static={})
    place = (topic_id(1), 0)
    law = decisions.rules(topic_id(1))
    assert law is decisions.rules(topic_id(1))
    for in_sync in ((0, 1), (0,)):
        decisions.put(place, changed_partition(decisions.partition(place), law, in_sync=in_sync))
    decisions.put((topic_id(1), 1), None)
    (record,) = decisions.records
    assert isinstance(record, PartitionChanged)
    assert (record.state.in_sync_replicas, record.state.partition_epoch) == ((0,), 2)


def test_rules_come_from_the_topics_configs_and_the_features() -> None:
    harness = ControllerHarness(brokers=1)
    harness.place("t", 1, PartitionImage((0,), (0,), 0))
    plain = PartitionChangeSet(harness.image, active={0}, node_id=0, static={}).rules(topic_id(1))
    assert plain == rules(0)

    harness.set_config(
        ConfigResourceType.TOPIC,
        "t",
        min_insync_replicas="2",
        unclean_leader_election_enable="true",
    )
    harness.with_elr()
    law = PartitionChangeSet(harness.image, active={0}, node_id=0, static={}).rules(topic_id(1))
    assert law == rules(0, least=2, unclean=True, has_elr=True)

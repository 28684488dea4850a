"""Manual assignments that the tests of the commands do not cover."""

import pytest

from odradek.cluster.controller.commands import ReplicaAssignment
from odradek.cluster.controller.replica_assignments import (
    check_assignment,
    initial_partition,
    replicas_by_partition,
)
from odradek.cluster.controller.state import ControllerState
from odradek.protocol.errors import ApiError
from tests.support.controller_harness import ControllerHarness


def state_with(brokers: int, *fenced: int) -> ControllerState:
    harness = ControllerHarness(brokers=brokers)
    harness.fence(*fenced)
    return ControllerState(harness.image, node_id=0, static={})


def test_assignments_may_come_in_any_order() -> None:
    assignments = [ReplicaAssignment(1, (1,)), ReplicaAssignment(0, (0,))]
    assert replicas_by_partition(state_with(2), assignments) == [(0,), (1,)]


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ((), "an empty replica list"),
        ((0, 0), "more than once"),
        ((0, 1, 2), "2"),
        ((0, 9), "broker 9, but no such broker"),
        ((1, 2), "fenced or in controlled"),
    ],
)
def test_invalid_assignments_are_refused_with_the_reason(
    replicas: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ApiError) as caught:
        check_assignment(state_with(3, 1, 2), replicas, 2)
    assert says in caught.value.message


def test_the_first_active_replica_leads_a_new_partition() -> None:
    partition = initial_partition(state_with(3, 1), (1, 2, 0))
    assert (partition.leader, partition.in_sync_replicas) == (2, (2, 0))

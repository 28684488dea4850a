"""Looking at groups and removing them: DescribeGroups (15), ListGroups (16), DeleteGroups (42)."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS
from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.members import RawMember, form, stabilise, wait_for_coordinator
from tests.conformance.test_wire_group_offsets import commit, committed
from tests.support.wire import WireClient


@pytest.fixture(autouse=True)
def coordinator(cluster: DialogueCluster, group: str) -> None:
    """The test's group has a coordinator."""
    wait_for_coordinator(cluster, group)


def describe(wire: WireClient, group: str, version: int = 5) -> DescribedGroup:
    """One group as DescribeGroups shows it."""
    request = DescribeGroupsRequest(groups=[group])
    (described,) = wire.ask(request, version, DescribeGroupsResponse).groups
    assert described.group_id == group
    return described


def listed(
    wire: WireClient,
    group: str,
    *,
    version: int = 5,
    states: tuple[str, ...] = (),
    types: tuple[str, ...] = (),
) -> ListedGroup | None:
    """How a list of groups shows that group; None if it is not in it."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    answer = wire.ask(request, version, ListGroupsResponse)
    assert answer.error_code == ErrorCode.NONE
    found = [each for each in answer.groups if each.group_id == group]
    assert len(found) <= 1, "a group is listed once"
    return found[0] if found else None


def delete(wire: WireClient, *groups: str, version: int = 2) -> dict[str, int]:
    """Error codes by group."""
    request = DeleteGroupsRequest(groups_names=list(groups))
    answer = wire.ask(request, version, DeleteGroupsResponse)
    return {each.group_id: each.error_code for each in answer.results}


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group_is_described(
    cluster: DialogueCluster, wire: WireClient, group: str, version: int
) -> None:
    """B.2: "Protocol data and assignments only when Stable; instance id v4"."""
    with cluster.connect() as one, cluster.connect() as two:
        members = [RawMember(one, group, instance_id="one"), RawMember(two, group)]
        stabilise(*members)
        described = describe(wire, group, version)
        assert described.error_code == ErrorCode.NONE
        assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
        assert described.protocol_data == "range"
        assert described.authorized_operations == NO_AUTHORIZED_OPERATIONS
        by_id = {each.member_id: each for each in described.members}
        assert by_id.keys() == {member.id for member in members}
        for member in members:
            shown = by_id[member.id]
            assert shown.member_metadata == member.metadata
            assert shown.member_assignment == member.id.encode()
            assert shown.client_id == "conformance"
            assert "127.0.0.1" in shown.client_host
            assert shown.group_instance_id == (member.instance_id if version >= 4 else None)


def test_a_group_that_rebalances_shows_no_assignments(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    """B.2: "Protocol data and assignments only when Stable"."""
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        form(member)
        described = describe(wire, group)
        assert described.group_state == "CompletingRebalance"
        assert described.protocol_data == ""
        assert [each.member_assignment for each in described.members] == [b""]


def test_an_empty_group_is_described(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        stabilise(member)
        member.leave()
    described = describe(wire, group)
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Empty")
    assert (described.protocol_type, described.members) == ("consumer", [])


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_nobody_knows_is_dead(wire: WireClient, group: str, version: int) -> None:
    """B.2: "Unknown group: v0-5 state "Dead", NONE; v6 GROUP_ID_NOT_FOUND with message"."""
    described = describe(wire, group, version)
    assert described.group_state == "Dead"
    assert described.members == []
    if version < 6:
        assert described.error_code == ErrorCode.NONE
    else:
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described.error_message


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str, version: int
) -> None:
    """B.2: "v4 states_filter and group_state, v5 types_filter and group_type"."""
    simple = unique("group")
    wait_for_coordinator(cluster, simple)
    commit(wire, simple, topic, {0: 1})
    with cluster.connect() as connection:
        stabilise(RawMember(connection, group))
        shown, shown_simple = (listed(wire, each, version=version) for each in (group, simple))
        assert shown is not None
        assert shown_simple is not None
        assert (shown.protocol_type, shown_simple.protocol_type) == ("consumer", "")
        assert shown.group_state == ("Stable" if version >= 4 else "")
        assert shown_simple.group_state == ("Empty" if version >= 4 else "")
        assert shown.group_type == ("classic" if version >= 5 else "")


def test_lists_of_groups_can_be_filtered(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    """B.2: as above; names of states and types are not case-sensitive."""
    with cluster.connect() as connection:
        stabilise(RawMember(connection, group))
        for states in (("Stable",), ("Empty", "stable")):
            assert listed(wire, group, states=states)
        assert not listed(wire, group, states=("Empty",))
        assert not listed(wire, group, states=("NoSuchState",))
        assert listed(wire, group, types=("classic",))
        assert listed(wire, group, types=("Consumer", "Classic"))
        assert not listed(wire, group, types=("share",))


@pytest.mark.parametrize("version", range(3))
def test_a_group_with_members_cannot_be_deleted(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str, version: int
) -> None:
    """B.2: "NON_EMPTY_GROUP (68), (69), (24), (16) per group; removes offsets too"."""
    nobody = unique("group")
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        stabilise(member)
        member.commit(topic, 5)
        assert delete(wire, group, nobody, version=version) == {
            group: ErrorCode.NON_EMPTY_GROUP,
            nobody: ErrorCode.GROUP_ID_NOT_FOUND,
        }
        member.leave()
        assert delete(wire, group, version=version) == {group: ErrorCode.NONE}
    assert committed(wire, group, topic, 0)[0][1] == -1
    assert describe(wire, group).group_state == "Dead"
    assert listed(wire, group) is None


def test_a_deleted_group_may_come_again(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    for _ in range(2):
        with cluster.connect() as connection:
            member = RawMember(connection, group)
            assert member.join().generation_id == 1
            member.leave()
        assert delete(wire, group) == {group: ErrorCode.NONE}

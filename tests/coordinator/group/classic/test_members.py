"""The members of a classic group: leader, protocols, joined members."""

import random

import pytest

from odradek.coordinator.group.classic.members import ClassicGroupMember, ClassicMembers, Protocols
from odradek.coordinator.group.classic.records import MemberMetadata
from odradek.coordinator.outcome import Command
from odradek.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol


def member(
    member_id: str, *names: str, instance: str | None = None, rebalance_ms: int = 1_000
) -> ClassicGroupMember:
    return ClassicGroupMember(
        member_id=member_id,
        group_instance_id=instance,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=rebalance_ms,
        protocols=tuple((name, name.encode()) for name in names or ("range",)),
    )


def leader(members: ClassicMembers) -> str | None:
    return members.leader_id


def has_all_joined(members: ClassicMembers) -> bool:
    return members.has_all_joined


def joining(names: tuple[str, ...]) -> tuple[Command, JoinGroupRequest]:
    request = JoinGroupRequest(
        protocols=[JoinGroupRequestProtocol(name=name, metadata=b"") for name in names]
    )
    return Command(request=request, request_id=1, api_version=5), request


def test_the_first_member_is_the_leader_and_the_next_one_its_successor() -> None:
    members = ClassicMembers()
    for name in "abc":
        members.add(member(name))
    assert leader(members) == "a"
    members.remove("a")
    assert leader(members) == "b"
    members.remove("c")
    assert leader(members) == "b"
    members.remove("b")
    assert leader(members) is None
    assert members.remove("b") is None


def test_the_leader_stays_if_it_joins_else_the_first_joined_member_leads() -> None:
    members = ClassicMembers()
    command, _ = joining(("range",))
    a, b, c = member("a"), member("b"), member("c")
    for one in (a, b, c):
        members.add(one)
    assert not members.elect_joined_leader()
    members.park_join(b, command)
    members.park_join(c, command)
    assert members.elect_joined_leader()
    assert leader(members) == "b"
    members.park_join(a, command)
    assert members.elect_joined_leader()
    assert leader(members) == "b"


def test_joining_is_counted_once_per_member() -> None:
    members = ClassicMembers()
    command, _ = joining(("range",))
    a, b = member("a"), member("b")
    members.add(a)
    members.add(b)
    assert members.park_join(a, command) is None
    assert members.park_join(a, command) is command
    assert members.joining_count == 1
    assert not has_all_joined(members)
    members.park_join(b, command)
    assert members.joining_count == len(members)
    members.remove("a")
    assert has_all_joined(members)
    assert members.joining_count == 1
    assert members.park_join(b, None) is command
    assert members.joining_count == 0


def test_a_renamed_static_member_stays_leader_and_keeps_its_assignment() -> None:
    members = ClassicMembers()
    for one in (member("a", instance="i"), member("b"), member("c")):
        members.add(one)
    renamed = members.get("a")
    assert renamed is not None
    renamed.assignment = b"mine"
    members.rename(renamed, "z")
    assert [one.member_id for one in members] == ["z", "b", "c"]
    assert leader(members) == "z"
    assert members.static_member_id("i") == "z"
    assert "a" not in members
    assert members.get("z") is renamed


def test_an_instance_id_is_free_after_its_member_has_left() -> None:
    members = ClassicMembers()
    members.add(member("a", instance="i"))
    members.remove("a")
    assert members.static_member_id("i") is None


def test_updated_members_have_their_new_protocols() -> None:
    members = ClassicMembers()
    a = member("a", "range", "sticky")
    members.add(a)
    members.add(member("b", "sticky", "range"))
    command, request = joining(("sticky",))
    members.update(a, command, request)
    assert members.has_common(["sticky"])
    assert not members.has_common(["range"])
    assert members.select_protocol() == "sticky"


def test_the_longest_rebalance_timeout_applies() -> None:
    members = ClassicMembers()
    assert members.rebalance_timeout_ms == 0
    members.add(member("a", rebalance_ms=5))
    members.add(member("b", rebalance_ms=50))
    assert members.rebalance_timeout_ms == 50


def test_a_stored_member_has_the_selected_protocol() -> None:
    stored = MemberMetadata(
        member_id="a",
        rebalance_timeout_ms=1,
        session_timeout_ms=2,
        subscription=b"topics",
        assignment=b"partitions",
    )
    one = ClassicGroupMember.of_metadata(stored, "range")
    assert one.metadata_for("range") == b"topics"
    assert one.metadata_for("other") == b""
    assert one.to_metadata("range") == stored


def _naive_winner(all_protocols: list[Protocols]) -> str:
    common = set.intersection(*({name for name, _ in protocols} for protocols in all_protocols))
    votes = [next(name for name, _ in protocols if name in common) for protocols in all_protocols]
    return max(votes, key=lambda name: (votes.count(name), -votes.index(name)))


@pytest.mark.parametrize("seed", range(50))
def test_the_selected_protocol_agrees_with_a_simple_count(seed: int) -> None:
    chance = random.Random(seed)
    members = ClassicMembers()
    for index in range(chance.randint(1, 8)):
        names = chance.sample(["a", "b", "c", "d"], chance.randint(1, 4))
        if "common" not in names:
            names.insert(chance.randint(0, len(names)), "common")
        members.add(member(str(index), *names))
        if chance.random() < 0.2:
            members.remove(str(chance.randint(0, index)))
    if len(members):
        winner = _naive_winner([one.protocols for one in members])
        assert members.select_protocol() == winner, seed

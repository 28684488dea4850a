"""Members counted together: leaders, protocols, joining."""

import random

import pytest

from odradek.coordinator.group.classic.roster import Member, Protocols, Roster
from odradek.coordinator.group.records import MemberMetadata
from odradek.coordinator.outcome import Command
from odradek.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol


def member(
    member_id: str, *names: str, instance: str | None = None, rebalance_ms: int = 1_000
) -> Member:
    return Member(
        member_id,
        group_instance_id=instance,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=rebalance_ms,
        protocols=tuple((name, name.encode()) for name in names or ("range",)),
    )


def leader(roster: Roster) -> str | None:
    return roster.leader_id


def has_all_joined(roster: Roster) -> bool:
    return roster.has_all_joined


def joining(names: tuple[str, ...]) -> tuple[Command, JoinGroupRequest]:
    request = JoinGroupRequest(
        protocols=[JoinGroupRequestProtocol(name=name, metadata=b"") for name in names]
    )
    return Command(request=request, request_id=1, api_version=5), request


def test_the_first_member_leads_and_its_successor_is_the_next_that_came() -> None:
    roster = Roster()
    for name in "abc":
        roster.add(member(name))
    assert leader(roster) == "a"
    roster.remove("a")
    assert leader(roster) == "b"
    roster.remove("c")
    assert leader(roster) == "b"
    roster.remove("b")
    assert leader(roster) is None
    assert roster.remove("b") is None


def test_the_leader_stays_if_it_joins_and_else_the_first_who_did_leads() -> None:
    roster = Roster()
    command, _ = joining(("range",))
    a, b, c = member("a"), member("b"), member("c")
    for one in (a, b, c):
        roster.add(one)
    assert not roster.elect_joined_leader()
    roster.park_join(b, command)
    roster.park_join(c, command)
    assert roster.elect_joined_leader()
    assert leader(roster) == "b"
    roster.park_join(a, command)
    assert roster.elect_joined_leader()
    assert leader(roster) == "b"


def test_joining_is_counted_once_per_member() -> None:
    roster = Roster()
    command, _ = joining(("range",))
    a, b = member("a"), member("b")
    roster.add(a)
    roster.add(b)
    assert roster.park_join(a, command) is None
    assert roster.park_join(a, command) is command
    assert roster.joining_count == 1
    assert not has_all_joined(roster)
    roster.park_join(b, command)
    assert roster.joining_count == len(roster)
    roster.remove("a")
    assert has_all_joined(roster)
    assert roster.joining_count == 1
    assert roster.park_join(b, None) is command
    assert roster.joining_count == 0


def test_a_renamed_static_member_keeps_place_office_and_assignment() -> None:
    roster = Roster()
    for one in (member("a", instance="i"), member("b"), member("c")):
        roster.add(one)
    renamed = roster.get("a")
    assert renamed is not None
    renamed.assignment = b"mine"
    roster.rename(renamed, "z")
    assert [one.member_id for one in roster] == ["z", "b", "c"]
    assert leader(roster) == "z"
    assert roster.static_member_id("i") == "z"
    assert "a" not in roster
    assert roster.get("z") is renamed


def test_an_instance_id_is_free_after_its_member_has_gone() -> None:
    roster = Roster()
    roster.add(member("a", instance="i"))
    roster.remove("a")
    assert roster.static_member_id("i") is None


def test_updated_members_speak_their_new_protocols() -> None:
    roster = Roster()
    a = member("a", "range", "sticky")
    roster.add(a)
    roster.add(member("b", "sticky", "range"))
    command, request = joining(("sticky",))
    roster.update(a, command, request)
    assert roster.has_common(["sticky"])
    assert not roster.has_common(["range"])
    assert roster.select_protocol() == "sticky"


def test_the_longest_rebalance_timeout_counts() -> None:
    roster = Roster()
    assert roster.rebalance_timeout_ms == 0
    roster.add(member("a", rebalance_ms=5))
    roster.add(member("b", rebalance_ms=50))
    assert roster.rebalance_timeout_ms == 50


def test_a_stored_member_speaks_the_protocol_that_was_chosen() -> None:
    stored = MemberMetadata(
        member_id="a",
        rebalance_timeout_ms=1,
        session_timeout_ms=2,
        subscription=b"topics",
        assignment=b"partitions",
    )
    one = Member.of_metadata(stored, "range")
    assert one.metadata_for("range") == b"topics"
    assert one.metadata_for("other") == b""
    assert one.to_metadata("range") == stored


def _naive_winner(all_protocols: list[Protocols]) -> str:
    common = set.intersection(*({name for name, _ in protocols} for protocols in all_protocols))
    votes = [next(name for name, _ in protocols if name in common) for protocols in all_protocols]
    return max(votes, key=lambda name: (votes.count(name), -votes.index(name)))


@pytest.mark.parametrize("seed", range(50))
def test_the_vote_agrees_with_counting_by_hand(seed: int) -> None:
    chance = random.Random(seed)
    roster = Roster()
    for index in range(chance.randint(1, 8)):
        names = chance.sample(["a", "b", "c", "d"], chance.randint(1, 4))
        if "common" not in names:
            names.insert(chance.randint(0, len(names)), "common")
        roster.add(member(str(index), *names))
        if chance.random() < 0.2:
            roster.remove(str(chance.randint(0, index)))
    if len(roster):
        winner = _naive_winner([one.protocols for one in roster])
        assert roster.select_protocol() == winner, seed

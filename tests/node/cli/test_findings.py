"""What is found about groups and partitions: facts, as sentences, with what to do."""

from node.cli.findings import why_nobody_reads
from protocol.messages.insight import ExplainedGroup, ExplainedMember


def test_a_group_without_members_does_not_read() -> None:
    group = ExplainedGroup(group_id="g", group_state="Empty")
    assert why_nobody_reads(group) == ["the group has no members: nobody reads"]


def test_a_group_that_rebalances_says_what_it_waits_for() -> None:
    group = ExplainedGroup(
        group_id="g",
        group_state="PreparingRebalance",
        wait="for its members to join",
        members=[ExplainedMember(member_id="m")],
    )
    assert why_nobody_reads(group) == [
        "the group is in PreparingRebalance: it waits for its members to join"
    ]
    group.wait, group.group_state = "", "Stable"
    assert why_nobody_reads(group) == []

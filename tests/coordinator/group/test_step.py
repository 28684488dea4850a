"""The step of a shard of groups."""

from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import NO_TOPICS


def test_a_step_collects_the_outcome_of_a_transition() -> None:
    step = GroupStep(5, GroupSettings())
    step.reply(1, "answer")
    step.set_timer(("t", "g"), step.now_ms + 10)
    outcome = step.build()
    assert [reply.response for reply in outcome.replies] == ["answer"]
    assert [timer.deadline_ms for timer in outcome.timers] == [15]
    assert outcome.records == ()


def test_by_default_no_partitions_are_withheld() -> None:
    step = GroupStep(0, GroupSettings())
    assert step.topics is NO_TOPICS
    assert step.withheld("g") == {}

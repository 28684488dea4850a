"""Drafts: what is written into one comes out of it, in order."""

from odradek.coordinator.outcome import Outcome, OutcomeBuilder, ShardReply, Timer


def test_a_draft_keeps_the_order_of_everything_it_is_given() -> None:
    draft: OutcomeBuilder[str] = OutcomeBuilder()
    draft.records += ["first", "second"]
    draft.reply(7, "answer")
    draft.set_timer(("session", "g", "m"), 100)
    draft.cancel_timer(("session", "g", "m"))
    assert draft.build() == Outcome(
        records=("first", "second"),
        replies=(ShardReply(7, "answer"),),
        timers=(Timer(("session", "g", "m"), 100), Timer(("session", "g", "m"), None)),
    )


def test_a_draft_is_atomic_unless_it_says_so() -> None:
    draft: OutcomeBuilder[str] = OutcomeBuilder()
    assert draft.build().is_atomic
    assert not draft.build(is_atomic=False).is_atomic

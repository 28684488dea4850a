"""Drafts: what is written into one comes out of it, in order."""

from odradek.coordinator.outcome import Draft, Outcome, Reply, Timer


def test_a_draft_keeps_the_order_of_everything_it_is_given() -> None:
    draft: Draft[str] = Draft()
    draft.records += ["first", "second"]
    draft.reply(7, "answer")
    draft.set_timer(("session", "g", "m"), 100)
    draft.cancel_timer(("session", "g", "m"))
    assert draft.seal() == Outcome(
        records=("first", "second"),
        replies=(Reply(7, "answer"),),
        timers=(Timer(("session", "g", "m"), 100), Timer(("session", "g", "m"), None)),
    )


def test_a_draft_is_atomic_unless_it_says_so() -> None:
    draft: Draft[str] = Draft()
    assert draft.seal().is_atomic
    assert not draft.seal(is_atomic=False).is_atomic

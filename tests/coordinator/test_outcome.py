"""Outcomes and their builder."""

from odradek.coordinator.outcome import (
    Command,
    Outcome,
    OutcomeBuilder,
    ShardReply,
    Timer,
    respond,
)


def test_a_builder_keeps_the_order() -> None:
    builder: OutcomeBuilder[str] = OutcomeBuilder()
    builder.records += ["first", "second"]
    builder.reply(7, "answer")
    builder.set_timer(("session", "g", "m"), 100)
    builder.cancel_timer(("session", "g", "m"))
    assert builder.build() == Outcome(
        records=("first", "second"),
        replies=(ShardReply(7, "answer"),),
        timers=(Timer(("session", "g", "m"), 100), Timer(("session", "g", "m"), None)),
    )


def test_an_outcome_is_atomic_by_default() -> None:
    builder: OutcomeBuilder[str] = OutcomeBuilder()
    assert builder.build().is_atomic
    assert not builder.build(is_atomic=False).is_atomic


def test_responses_wait_for_earlier_records_and_reads_do_not() -> None:
    command = Command(request=None, request_id=7)
    (deferred,) = respond(command, "x").replies
    (immediate,) = respond(command, "x", is_immediate=True).replies
    assert (deferred.is_immediate, immediate.is_immediate) == (False, True)

"""Every code that ExplainGroup may send has a text."""

from odradek.coordinator.group.events import EventKind
from odradek.node.cli.group_texts import EVENT_TEXTS, PROGRESS_TEXTS, WAIT_TEXTS, text_of
from odradek.protocol.messages.diagnostics import MemberProgress, RebalanceWait


def test_every_code_has_a_text() -> None:
    assert set(EVENT_TEXTS) == set(EventKind)
    assert set(PROGRESS_TEXTS) == set(MemberProgress)
    assert {*WAIT_TEXTS, RebalanceWait.NONE} == set(RebalanceWait)


def test_a_code_of_a_newer_broker_is_shown_as_a_number() -> None:
    assert text_of(EVENT_TEXTS, EventKind.REWOUND) == "rewound"
    assert text_of(EVENT_TEXTS, 99) == "code 99"

"""The same complaint about the same peer once a minute with a count; floods are cut."""

import logging

import pytest

from odradek.node.repeated_lines import (
    COMPLAINT_WINDOW_S,
    COMPLAINTS_MAX,
    FLOOD_LINES_MAX,
    FLOOD_WINDOW_S,
    RepeatedLineFilter,
)

REFUSED = "closing the connection"


class FilteredLog:
    """A filter with a clock, and the counts of the lines that it let pass or said later."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.lines: list[str] = []
        self.filter = RepeatedLineFilter(lambda: self.now_s)
        self.filter.emit = self._write

    def say(self, event: str = REFUSED, level: int = logging.WARNING, **fields: object) -> bool:
        record = logging.LogRecord("odradek.node.wire", level, "x.py", 7, event, (), None)
        record.__dict__.update(fields)
        passes = self.filter.filter(record)
        if passes:
            self._write(record)
        return passes

    def after(self, seconds: float) -> list[str]:
        """What is said when that much time has passed and nothing has happened."""
        self.lines.clear()
        self.now_s += seconds
        self.filter.say_due()
        return self.lines

    def _write(self, record: logging.LogRecord) -> None:
        counts = [
            f"{name}={record.__dict__[name]}"
            for name in ("repeated", "suppressed")
            if name in record.__dict__
        ]
        self.lines.append(" ".join([record.__dict__.get("client_address", "-"), *counts]))


def test_a_complaint_is_said_once_a_minute_and_its_count_also_when_it_stops() -> None:
    log = FilteredLog()
    assert [log.say(client_address="10.0.0.9", client_port=n) for n in range(4)] == [
        *(True, False, False, False)
    ]
    assert log.after(COMPLAINT_WINDOW_S - 1) == []
    assert log.after(1) == ["10.0.0.9 repeated=3"]
    # The count has been said: the minute begins again.
    assert not log.say(client_address="10.0.0.9")
    assert log.after(COMPLAINT_WINDOW_S) == ["10.0.0.9 repeated=1"]
    assert log.after(COMPLAINT_WINDOW_S) == []
    assert log.say(client_address="10.0.0.9")


def test_a_line_after_the_minute_has_the_count_before_it() -> None:
    log = FilteredLog()
    log.say(client_address="10.0.0.9")
    log.say(client_address="10.0.0.9")
    log.now_s += COMPLAINT_WINDOW_S
    log.lines.clear()
    log.say(client_address="10.0.0.9")
    assert log.lines == ["10.0.0.9 repeated=1"]


@pytest.mark.parametrize(
    "other",
    [
        {"client_address": "10.0.0.8"},
        {"client_address": "10.0.0.9", "reason": "another"},
        {"client_address": "10.0.0.9", "listener": "SSL"},
        {"client_address": "10.0.0.9", "event": "another sentence"},
        {"client_address": "10.0.0.9", "level": logging.ERROR},
        {"peer_node": 3},
    ],
)
def test_another_peer_or_complaint_is_said(other: dict[str, object]) -> None:
    log = FilteredLog()
    log.say(client_address="10.0.0.9")
    assert log.say(**other)  # type: ignore[arg-type]  # fields of any kind


def test_reasons_of_one_kind_are_the_same_complaint() -> None:
    log = FilteredLog()
    assert log.say(client_address="10.0.0.9", kind="frame", reason="17 bytes")
    assert not log.say(client_address="10.0.0.9", kind="frame", reason="18 bytes")


def test_what_is_no_complaint_about_a_peer_is_said_each_time() -> None:
    log = FilteredLog()
    assert all(log.say("cannot be written", store=1) for _ in range(3))
    assert all(log.say(level=logging.INFO, client_address="10.0.0.9") for _ in range(3))


def test_a_flood_of_one_event_is_cut_and_counted_however_many_peers_there_are() -> None:
    log = FilteredLog()
    passed = [log.say(client_address=f"10.0.0.{n}") for n in range(FLOOD_LINES_MAX + 30)]
    assert passed == [True] * FLOOD_LINES_MAX + [False] * 30
    assert log.say("another event")
    assert log.after(FLOOD_WINDOW_S) == [f"10.0.0.{FLOOD_LINES_MAX + 29} suppressed=30"]
    assert log.say(client_address="10.0.1.1")


def test_what_is_remembered_is_bounded() -> None:
    log = FilteredLog()
    for number in range(2 * COMPLAINTS_MAX):
        if number % FLOOD_LINES_MAX == 0:
            log.after(FLOOD_WINDOW_S / 1000)
        log.say(f"event {number}", client_address="10.0.0.9")
    assert len(log.filter._complaints) == COMPLAINTS_MAX
    log.after(COMPLAINT_WINDOW_S + FLOOD_WINDOW_S)
    assert not log.filter._complaints
    assert not log.filter._floods


def test_the_end_of_the_process_says_what_is_held_back() -> None:
    log = FilteredLog()
    log.say(client_address="10.0.0.9")
    log.say(client_address="10.0.0.9")
    log.lines.clear()
    log.filter.say_all()
    assert log.lines == ["10.0.0.9 repeated=1"]

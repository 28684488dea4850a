"""A report is sent in slices of time and in messages of a limited size."""

from odradek.node.metrics.registry import FamilyLines
from odradek.node.metrics.report import MESSAGE_BYTES_MAX, SLICE_S, SlicedReport


class Sent:
    def __init__(self) -> None:
        self.messages: list[list[FamilyLines]] = []
        self.lasts: list[bool] = []

    def __call__(self, parts: list[FamilyLines], is_last: bool) -> None:
        self.messages.append(parts)
        self.lasts.append(is_last)

    @property
    def lines(self) -> str:
        return "".join(part.lines for parts in self.messages for part in parts)


def lines(text: str) -> FamilyLines:
    return FamilyLines("a", "gauge", "A", text)


def stopped() -> float:
    """A clock for what is one slice, however busy the machine is."""
    return 0.0


def test_small_parts_share_a_message() -> None:
    sent = Sent()
    assert SlicedReport([lines("a 1\n"), lines("b 2\n")], sent, stopped).run()
    assert sent.messages == [[lines("a 1\n"), lines("b 2\n")]]
    assert sent.lasts == [True]


def test_a_report_without_metrics_ends_too() -> None:
    sent = Sent()
    assert SlicedReport([], sent, stopped).run()
    assert (sent.messages, sent.lasts) == ([[]], [True])


def test_no_message_is_too_large() -> None:
    sent = Sent()
    text = "".join(f"{index} {'ü' * 1_000}\n" for index in range(200))
    report = SlicedReport([lines(text), lines(text)], sent)
    while not report.run():
        pass
    sizes = [sum(len(part.lines.encode()) for part in parts) for parts in sent.messages]
    assert max(sizes) <= MESSAGE_BYTES_MAX
    assert sent.lines == text * 2
    assert sent.lasts == [False] * (len(sizes) - 1) + [True]


def test_a_line_that_no_message_can_carry_is_left_out() -> None:
    sent = Sent()
    parts = [lines(f"a 1\n{'x' * MESSAGE_BYTES_MAX} 2\nb 3\n")]
    assert SlicedReport(parts, sent, stopped).run()
    assert sent.lines == "a 1\nb 3\n"


def test_a_slice_ends_after_its_time() -> None:
    now, sent = 0.0, Sent()

    def clock() -> float:
        nonlocal now
        now += SLICE_S / 2
        return now

    report = SlicedReport([lines(f"{index} 1\n") for index in range(5)], sent, clock)
    slices = 1
    while not report.run():
        slices += 1
    assert slices == 3
    assert sent.lines == "".join(f"{index} 1\n" for index in range(5))

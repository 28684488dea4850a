"""Requests are timed by group, and their stages add up."""

from odradek.node.bus.request_trace import RequestTrace
from odradek.node.wire.request_times import (
    GROUPS,
    NOT_MEASURED,
    STAGES,
    RequestTimes,
    RequestTiming,
)


def test_stages_are_the_parts_of_a_request() -> None:
    times = RequestTimes()
    timing = RequestTiming(GROUPS.index("fetch"), 1_000, 3_000)
    timing.done_ns = 8_000
    times.observe(timing, 20_000)
    found = {labels: histogram.sum_s for labels, histogram in times.stages()}
    assert found == {
        ("fetch", "queue"): 2e-6,
        ("fetch", "handler"): 5e-6,
        ("fetch", "send"): 12e-6,
    }
    assert {stage for _, stage in found} == set(STAGES)
    assert [(labels, each.sum_s) for labels, each in times.totals()] == [(("fetch",), 19e-6)]


def test_a_trace_ends_with_the_request_and_may_be_all_that_is_wanted() -> None:
    times, ended = RequestTimes(), list[RequestTrace]()
    timing = RequestTiming(NOT_MEASURED, 1_000, 3_000, RequestTrace("", 1_000, ended.append))
    assert timing.trace is not None
    timing.trace.answered_ns = 7_000
    timing.done_ns = 8_000
    times.observe(timing, 20_000, 12)
    assert not [*times.totals()]
    [trace] = ended
    assert (trace.end_ns, trace.is_answered, trace.response_bytes) == (20_000, True, 12)
    assert [(each.name, each.start_ns, each.end_ns) for each in trace.spans] == [
        ("encode", 7_000, 8_000),
        ("send", 8_000, 20_000),
    ]


def test_the_trace_of_a_request_without_a_response_ends_when_its_connection_is_closed() -> None:
    times, ended = RequestTimes(), list[RequestTrace]()
    timing = RequestTiming(NOT_MEASURED, 1_000, 3_000, RequestTrace("", 1_000, ended.append))
    timing.done_ns = 9_000
    times.abandon(timing)
    assert [(each.end_ns, each.is_answered) for each in ended] == [(9_000, False)]

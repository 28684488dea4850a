"""Requests are timed by API, and their stages add up."""

from odradek.node.bus.request_trace import RequestTrace
from odradek.node.wire.request_times import (
    NOT_MEASURED,
    STAGES,
    RequestTimes,
    RequestTiming,
)
from odradek.protocol.apis import ApiKey


def test_stages_are_the_parts_of_a_request() -> None:
    times = RequestTimes()
    assert not times.totals()
    assert not times.stages(), "of APIs that nobody has asked there is nothing"
    timing = RequestTiming(ApiKey.FETCH, 1_000, 3_000)
    timing.done_ns = 8_000
    times.observe(timing, 20_000)
    timing = RequestTiming(ApiKey.PRODUCE, 1_000, 1_000)
    times.observe(timing, 5_000)
    found = {(api_key, stage): histogram.sum_s for api_key, stage, histogram in times.stages()}
    assert found == {
        (ApiKey.FETCH, "queue"): 2e-6,
        (ApiKey.FETCH, "handler"): 5e-6,
        (ApiKey.FETCH, "send"): 12e-6,
        (ApiKey.PRODUCE, "queue"): 0.0,
        (ApiKey.PRODUCE, "handler"): 0.0,
        (ApiKey.PRODUCE, "send"): 4e-6,
    }
    assert tuple(stage for _, stage in found)[:3] == STAGES
    totals = {api_key: histogram.sum_s for api_key, histogram in times.totals()}
    assert totals == {ApiKey.FETCH: 19e-6, ApiKey.PRODUCE: 4e-6}


def test_a_trace_ends_with_the_request_and_may_be_all_that_is_wanted() -> None:
    times, ended = RequestTimes(), list[RequestTrace]()
    timing = RequestTiming(NOT_MEASURED, 1_000, 3_000, RequestTrace("", 1_000, ended.append))
    assert timing.trace is not None
    timing.trace.answered_ns = 7_000
    timing.done_ns = 8_000
    times.observe(timing, 20_000, 12)
    assert not times.totals()
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

"""The spans of one request: bounded, in order, and nothing after its end."""

from odradek.node.bus.request_trace import ROOT, SPANS_MAX, TOPICS_MAX, RequestTrace


def test_spans_have_times_and_parents() -> None:
    ended: list[RequestTrace] = []
    trace = RequestTrace("request", 1_000, ended.append)
    outer = trace.begin("worker_request", attributes={"worker": "worker-0"})
    inner = trace.add("append", 2_000, 3_000, process="worker-0", parent=outer)
    assert [span.name for span in trace.spans] == ["worker_request", "append"]
    assert trace.spans[outer].end_ns == 0
    trace.end(outer)
    assert trace.spans[outer].end_ns >= trace.spans[outer].start_ns
    assert (trace.spans[inner].parent, trace.spans[outer].parent) == (outer, ROOT)
    assert trace.spans[outer].attributes == {"worker": "worker-0"}
    trace.finish(5_000, is_answered=True)
    trace.finish(6_000, is_answered=False)
    assert ended == [trace]
    assert (trace.end_ns, trace.is_answered) == (5_000, True)


def test_a_trace_keeps_a_bounded_number_of_spans_and_topics() -> None:
    trace = RequestTrace("request", 0, lambda _: None)
    for at in range(SPANS_MAX + 3):
        trace.add("append", at, at + 1)
    over = trace.begin("append")
    trace.end(over)
    assert over == ROOT
    assert (len(trace.spans), trace.omitted_count) == (SPANS_MAX, 4)
    trace.add_topics(str(at) for at in range(2 * TOPICS_MAX))
    assert len(trace.topics) == TOPICS_MAX


def test_an_ended_trace_takes_no_more_spans() -> None:
    trace = RequestTrace("request", 0, lambda _: None)
    trace.finish(1, is_answered=False)
    assert trace.add("append", 1, 2) == ROOT
    assert trace.spans == []

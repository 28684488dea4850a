"""What a worker notes of the requests that a router wants traced."""

from pathlib import Path

from odradek.node.bus.messages import Appended, RequestFailed, RequestTraced, TraceRequest
from odradek.node.worker.request_traces import OPEN_COUNT_MAX, WorkerTraces
from odradek.node.worker.turn_requests import RouterState
from tests.node.worker.test_replication import state
from tests.node.worker.test_turns import TurnBench
from tests.support.replica_harness import ReplicaHarness
from tests.support.stores import batch_of


def test_a_traced_append_says_what_was_done_for_it(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    traces = bench.turns.traces
    append, other = bench.stage(1, 2, batch_of()), bench.stage(2, 2, batch_of())
    traces.begin(bench.router, TraceRequest(1))
    bench.run(append, other)
    told, first, second = traces.with_spans(bench.router, bench.router.replies)
    assert isinstance(told, RequestTraced)
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert (told.request_id, first.request_id, second.request_id) == (1, 1, 2)
    assert [span.name for span in told.spans] == ["worker_queue", "append", "commit"]
    assert told.spans[1].attributes == (("topic", "a"), ("partition", "2"))
    assert told.spans[2].attributes == (("synced", "no"),)
    for before, after in zip(told.spans, told.spans[1:], strict=False):
        assert before.start_ns <= before.end_ns <= after.start_ns <= after.end_ns
    assert not traces.open


def test_nothing_is_noted_of_other_requests(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    bench.run(bench.stage(1, 0, batch_of()))
    replies = list(bench.router.replies)
    assert bench.turns.traces.with_spans(bench.router, replies) == replies


def test_each_follower_is_named_with_the_time_when_it_had_the_batch() -> None:
    traces, router = WorkerTraces(), RouterState()
    traces.begin(router, TraceRequest(7))
    traces.wait_for_followers(router, 7, (0, 3), 10, {1, 2})
    traces.note_followers((0, 3), {1: 10, 2: 9}.__getitem__)
    traces.note_followers((0, 4), {1: 10, 2: 10}.__getitem__)
    told, _ = traces.with_spans(router, [RequestFailed(7, 7)])
    assert isinstance(told, RequestTraced)
    follower, wait = told.spans[-2:]
    assert (follower.name, follower.attributes) == ("follower", (("broker", "1"),))
    assert (wait.name, wait.attributes) == (
        "replication_wait",
        (("followers", "1,2"), ("missing", "2")),
    )
    assert follower.end_ns <= wait.end_ns


def test_a_leader_names_the_followers_that_it_waited_for_and_the_one_it_still_waits_for(
    tmp_path: Path,
) -> None:
    harness = ReplicaHarness(tmp_path, 3)
    harness.start(state(0, 1, replicas=(0, 1, 2)))
    leader, follower, late = harness.nodes
    traces = leader.turns.traces

    def waits(request_id: int) -> dict[str, str]:
        """The attributes of the wait, once there is an answer; the followers come first."""
        told, _ = traces.with_spans(leader.router, leader.router.replies)
        leader.router.replies.clear()
        assert isinstance(told, RequestTraced)
        assert told.request_id == request_id
        names = [span.name for span in told.spans]
        assert names[:3] == ["worker_queue", "append", "commit"]
        *followers, wait = told.spans[3:]
        assert {span.name for span in followers} == {"follower"}
        assert all(wait.start_ns <= span.end_ns <= wait.end_ns for span in followers)
        reached = ",".join(value for span in followers for _, value in span.attributes)
        return {**dict(wait.attributes), "reached": reached}

    traces.begin(leader.router, TraceRequest(1))
    leader.append(1, batch_of())
    harness.run_until(lambda: bool(leader.router.replies), "it is answered")
    assert waits(1) == {"followers": "1,2", "reached": "1,2"}
    late.stop()
    traces.begin(leader.router, TraceRequest(2))
    leader.append(2, batch_of(), timeout_ms=50)
    harness.run_until(lambda: follower.log().log_end_offset == 2, "a follower has it")

    def is_answered() -> bool:
        harness.now_ms += 10
        return bool(leader.router.replies)

    harness.run_until(is_answered, "it has timed out")
    told = waits(2)
    assert told["followers"] == "1,2"
    assert "2" in told["missing"]
    harness.close()


def test_requests_that_never_come_are_forgotten() -> None:
    traces, router = WorkerTraces(), RouterState()
    for request_id in range(OPEN_COUNT_MAX + 5):
        traces.begin(router, TraceRequest(request_id))
    assert len(traces.open) == OPEN_COUNT_MAX
    assert (id(router), 4) not in traces.open

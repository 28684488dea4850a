"""Who does not answer is silent after a while, and only if it has really had the time."""

from odradek.node.controller.process_liveness import CHECK_MS, ProcessLiveness

PATIENCE_MS = 3_000
WORKER, ROUTER = "worker-0", "router-0"


class Watch:
    """A node's processes, asked under a clock that is moved by hand."""

    def __init__(self) -> None:
        self.liveness = ProcessLiveness([WORKER, ROUTER], patience_ms=PATIENCE_MS)
        self.now_ms = 1_000_000
        self.asked = 0

    def pass_time(self, duration_ms: int, *, answering: tuple[str, ...]) -> None:
        """Look as often as there is something to do; these answer at once."""
        until = self.now_ms + duration_ms
        while self.now_ms < until:
            if self.liveness.check(self.now_ms):
                self.asked += 1
                for name in answering:
                    self.liveness.on_response(name)
            due_ms = self.liveness.next_deadline_ms()
            assert due_ms is not None
            self.now_ms = min(until, max(due_ms, self.now_ms + 1))
        self.liveness.check(self.now_ms)


def test_who_answers_is_never_silent() -> None:
    watch = Watch()
    watch.pass_time(10 * PATIENCE_MS, answering=(WORKER, ROUTER))
    assert watch.liveness.unresponsive == set()
    assert watch.asked == 10 * PATIENCE_MS // CHECK_MS


def test_who_does_not_answer_is_silent_when_its_time_is_over_and_until_it_does() -> None:
    watch = Watch()
    watch.pass_time(CHECK_MS, answering=(WORKER, ROUTER))
    watch.pass_time(PATIENCE_MS - 1, answering=(ROUTER,))
    assert watch.liveness.unresponsive == set()
    watch.pass_time(CHECK_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {WORKER}
    watch.liveness.on_response(WORKER)
    assert watch.liveness.unresponsive == set()


def test_one_that_greets_and_dies_again_and_again_has_no_more_time_than_another() -> None:
    watch = Watch()
    watch.pass_time(2 * PATIENCE_MS, answering=())
    assert watch.liveness.unresponsive == {WORKER, ROUTER}
    watch.liveness.on_response(WORKER)
    watch.pass_time(PATIENCE_MS + CHECK_MS, answering=())
    assert watch.liveness.unresponsive == {WORKER, ROUTER}


def test_time_in_which_we_were_away_counts_for_nobody() -> None:
    watch = Watch()
    watch.pass_time(CHECK_MS, answering=())
    watch.now_ms += 100 * PATIENCE_MS
    watch.liveness.check(watch.now_ms)
    assert watch.liveness.unresponsive == set()
    watch.pass_time(PATIENCE_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {WORKER}


def test_strangers_do_not_count() -> None:
    watch = Watch()
    watch.liveness.on_response("worker-7")
    watch.pass_time(2 * PATIENCE_MS, answering=(WORKER, ROUTER))
    assert watch.liveness.unresponsive == set()


def test_who_is_not_expected_any_more_is_silent_for_nobody() -> None:
    watch = Watch()
    watch.pass_time(2 * PATIENCE_MS, answering=(ROUTER,))
    watch.liveness.set_expected([ROUTER, "worker-1"])
    assert watch.liveness.unresponsive == set()
    watch.pass_time(2 * PATIENCE_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {"worker-1"}


def test_who_starts_in_the_place_of_another_has_the_whole_time() -> None:
    watch = Watch()
    watch.pass_time(PATIENCE_MS - CHECK_MS, answering=(ROUTER,))
    watch.liveness.set_expected([ROUTER, WORKER, "worker-1"])
    watch.pass_time(PATIENCE_MS - CHECK_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == set()


def test_where_nobody_is_expected_nobody_is_asked() -> None:
    liveness = ProcessLiveness([], patience_ms=PATIENCE_MS)
    assert liveness.next_deadline_ms() is None
    assert not liveness.check(1_000_000)

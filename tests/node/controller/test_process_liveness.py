"""A process that does not respond is unresponsive after the timeout."""

from odradek.node.controller.process_liveness import CHECK_MS, ProcessLiveness

TIMEOUT_MS = 3_000
WORKER, ROUTER = "worker-0", "router-0"


class Watch:
    """The liveness checks of a node's processes, with a manual clock."""

    def __init__(self) -> None:
        self.liveness = ProcessLiveness([WORKER, ROUTER], timeout_ms=TIMEOUT_MS)
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


def test_a_process_that_responds_is_never_unresponsive() -> None:
    watch = Watch()
    watch.pass_time(10 * TIMEOUT_MS, answering=(WORKER, ROUTER))
    assert watch.liveness.unresponsive == set()
    assert watch.asked == 10 * TIMEOUT_MS // CHECK_MS


def test_a_process_is_unresponsive_from_the_timeout_until_it_responds() -> None:
    watch = Watch()
    watch.pass_time(CHECK_MS, answering=(WORKER, ROUTER))
    watch.pass_time(TIMEOUT_MS - 1, answering=(ROUTER,))
    assert watch.liveness.unresponsive == set()
    watch.pass_time(CHECK_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {WORKER}
    watch.liveness.on_response(WORKER)
    assert watch.liveness.unresponsive == set()


def test_a_process_that_crashes_repeatedly_becomes_unresponsive() -> None:
    watch = Watch()
    watch.pass_time(2 * TIMEOUT_MS, answering=())
    assert watch.liveness.unresponsive == {WORKER, ROUTER}
    watch.liveness.on_response(WORKER)
    watch.pass_time(TIMEOUT_MS + CHECK_MS, answering=())
    assert watch.liveness.unresponsive == {WORKER, ROUTER}


def test_a_pause_of_the_controller_process_does_not_count() -> None:
    watch = Watch()
    watch.pass_time(CHECK_MS, answering=())
    watch.now_ms += 100 * TIMEOUT_MS
    watch.liveness.check(watch.now_ms)
    assert watch.liveness.unresponsive == set()
    watch.pass_time(TIMEOUT_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {WORKER}


def test_unexpected_processes_are_ignored() -> None:
    watch = Watch()
    watch.liveness.on_response("worker-7")
    watch.pass_time(2 * TIMEOUT_MS, answering=(WORKER, ROUTER))
    assert watch.liveness.unresponsive == set()


def test_a_process_that_is_not_expected_is_never_unresponsive() -> None:
    watch = Watch()
    watch.pass_time(2 * TIMEOUT_MS, answering=(ROUTER,))
    watch.liveness.set_expected([ROUTER, "worker-1"])
    assert watch.liveness.unresponsive == set()
    watch.pass_time(2 * TIMEOUT_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == {"worker-1"}


def test_a_new_process_has_the_whole_timeout() -> None:
    watch = Watch()
    watch.pass_time(TIMEOUT_MS - CHECK_MS, answering=(ROUTER,))
    watch.liveness.set_expected([ROUTER, WORKER, "worker-1"])
    watch.pass_time(TIMEOUT_MS - CHECK_MS, answering=(ROUTER,))
    assert watch.liveness.unresponsive == set()


def test_without_expected_processes_there_are_no_checks() -> None:
    liveness = ProcessLiveness([], timeout_ms=TIMEOUT_MS)
    assert liveness.next_deadline_ms() is None
    assert not liveness.check(1_000_000)

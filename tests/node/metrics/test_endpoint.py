"""/metrics asks all processes, and answers when they have answered or the time is over."""

from collections.abc import Callable

from odradek.node.http_server import TEXT_TYPE as PLAIN
from odradek.node.http_server import HttpRequest
from odradek.node.metrics.endpoint import COLLECT_S, MetricsEndpoint
from odradek.node.metrics.exposition import OPENMETRICS_TYPE, TEXT_TYPE
from odradek.node.metrics.family import MetricFamily, MetricKind
from odradek.node.metrics.registry import FamilyLines, Metrics

TEXT = HttpRequest("/metrics", "", "")
OPENMETRICS = HttpRequest("/metrics", "", "application/openmetrics-text")
MISSING = MetricFamily(name="missing", kind=MetricKind.GAUGE, process="every", help="Missing")
UP = MetricFamily(name="up", kind=MetricKind.GAUGE, process="every", help="Up")


class Process:
    def __init__(self, name: str, *, is_ready: bool = True) -> None:
        self.name = name
        self.is_ready = is_ready
        self.asked: list[Callable[[list[FamilyLines]], None]] = []

    def collect(self, on_metrics: Callable[[list[FamilyLines]], None]) -> bool:
        if self.is_ready:
            self.asked.append(on_metrics)
        return self.is_ready

    def answer(self, index: int = -1) -> None:
        self.asked[index]([FamilyLines("up", "gauge", "Up", f'up{{process="{self.name}"}} 1\n')])


class Scrapes:
    def __init__(self, *processes: Process) -> None:
        self.now = 0.0
        own = Metrics("supervisor", {"up": UP, "missing": MISSING})
        own.read("up", lambda: 1)
        own.read("missing", lambda: self.endpoint.missing_count)
        self.endpoint = MetricsEndpoint(own, lambda: processes, lambda: self.now)
        self.answers: list[tuple[str, str]] = []

    def ask(self, request: HttpRequest = TEXT) -> None:
        def respond(status: int, text: str, content_type: str = PLAIN) -> None:
            assert status == 200
            self.answers.append((text, content_type))

        self.endpoint.serve(request, respond)

    def answered(self) -> set[str]:
        """Whose metrics are in the last answer."""
        lines = self.answers[-1][0].splitlines()
        return {line[12:-4] for line in lines if line.startswith("up{")}

    def missing(self) -> int:
        """How many are said to be missing in the last answer."""
        lines = self.answers[-1][0].splitlines()
        [line] = [line for line in lines if line.startswith("missing{")]
        return int(line.rpartition(" ")[2])


def test_the_answer_waits_for_all_that_are_ready() -> None:
    a, b, starting = Process("a"), Process("b"), Process("c", is_ready=False)
    scrapes = Scrapes(a, b, starting)
    scrapes.ask()
    a.answer()
    scrapes.endpoint.tick(0.0)
    assert not scrapes.answers
    b.answer()
    scrapes.endpoint.tick(0.0)
    assert scrapes.answered() == {"supervisor", "a", "b"}
    assert scrapes.missing() == 1, "the one that is not ready"
    assert scrapes.answers[0][1] == TEXT_TYPE
    assert scrapes.endpoint.deadline == float("inf")


def test_a_process_that_has_ended_or_hangs_is_left_out() -> None:
    ended, hanging = Process("a"), Process("b")
    scrapes = Scrapes(ended, hanging)
    scrapes.ask()
    scrapes.endpoint.on_exit("a")
    scrapes.endpoint.tick(scrapes.endpoint.deadline - 0.01)
    assert not scrapes.answers
    scrapes.endpoint.tick(scrapes.endpoint.deadline)
    assert scrapes.answered() == {"supervisor"}
    assert scrapes.missing() == 2
    scrapes.now = COLLECT_S
    scrapes.ask()
    hanging.answer(0)
    scrapes.endpoint.tick(scrapes.now)
    assert len(scrapes.answers) == 1, "what was asked for before is no answer"
    ended.answer()
    hanging.answer()
    scrapes.endpoint.tick(scrapes.now)
    assert scrapes.answered() == {"supervisor", "a", "b"}
    assert scrapes.missing() == 0


def test_requests_at_the_same_time_get_one_collection_each_in_its_format() -> None:
    process = Process("a")
    scrapes = Scrapes(process)
    scrapes.ask()
    scrapes.ask(OPENMETRICS)
    assert len(process.asked) == 1
    process.answer()
    scrapes.endpoint.tick(0.0)
    assert sorted(kind for _, kind in scrapes.answers) == [OPENMETRICS_TYPE, TEXT_TYPE]
    [openmetrics] = [text for text, kind in scrapes.answers if kind == OPENMETRICS_TYPE]
    assert openmetrics.endswith("# EOF\n")

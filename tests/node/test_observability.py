"""Logging with a limit for repeated lines, metrics on request, a link that never blocks."""

import asyncio
import io
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from odradek.node.config import load
from odradek.node.observability import (
    FLOOD_LINES_MAX,
    FLOOD_WINDOW_S,
    LINK_KIND,
    BeginControlledShutdown,
    CollectMetrics,
    FromChild,
    JsonFormatter,
    Metrics,
    MetricsReport,
    ProcessHeartbeat,
    ProcessReady,
    RepeatedLineFilter,
    ResizeWorkers,
    Sample,
    ShutdownAllowed,
    StopProcess,
    SupervisorLink,
    TextFormatter,
    configure_logging,
    decode_from_child,
    encode_link,
    exposition,
)


def record(message: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("odradek.node.wire", level, "file.py", 7, message, arguments, None)


# -- logging --------------------------------------------------------------------------------------


def test_a_line_for_humans_has_time_level_and_process() -> None:
    line = TextFormatter("router-0").format(record("port %d", 9092))
    assert line[12:] == " WARN  router-0   port 9092"


def test_a_line_for_machines_is_one_json_object_also_with_an_exception() -> None:
    failed = record("line one\nline two")
    try:
        raise ValueError("bad")
    except ValueError:
        failed.exc_info = sys.exc_info()
    line = JsonFormatter("worker-1").format(failed)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["process"], entry["logger"]) == (
        "warning",
        "worker-1",
        "odradek.node.wire",
    )
    assert entry["message"] == "line one\nline two"
    assert "ValueError: bad" in entry["exception"]
    assert entry["time"].endswith("Z")


def test_a_flood_of_lines_from_one_place_is_cut_and_counted() -> None:
    now = 100.0
    flood = RepeatedLineFilter(lambda: now)
    passed = [flood.filter(record("again %d", index)) for index in range(FLOOD_LINES_MAX + 30)]
    assert passed == [True] * FLOOD_LINES_MAX + [False] * 30
    now += FLOOD_WINDOW_S
    next_one = record("again %d", 99)
    assert flood.filter(next_one)
    assert next_one.getMessage() == "again 99 (30 similar lines suppressed)"


@pytest.fixture
def unconfigured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hook = sys.excepthook
    flags = logging.raiseExceptions, logging.logThreads, logging.logProcesses
    multiprocessing = logging.logMultiprocessing
    yield
    root.handlers[:], root.level = handlers, level
    sys.excepthook = hook
    logging.raiseExceptions, logging.logThreads, logging.logProcesses = flags
    logging.logMultiprocessing = multiprocessing


@pytest.mark.usefixtures("unconfigured")
def test_the_log_is_json_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging(load(environment={}, options={"log.level": "WARNING"}), "router-0")
    logging.getLogger("node").info("not shown")
    logging.getLogger("node").warning("shown")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "shown"


@pytest.mark.usefixtures("unconfigured")
def test_a_failure_of_the_process_is_a_line_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging(load(environment={}), "router-0")
    sys.excepthook(ValueError, ValueError("bad"), None)
    entry = json.loads(stream.getvalue())
    assert entry["message"] == "router-0 failed and exits"
    assert "ValueError: bad" in entry["exception"]


# -- metrics --------------------------------------------------------------------------------------


def test_metrics_are_read_when_they_are_collected() -> None:
    metrics = Metrics()
    requests = 0
    metrics.counter("requests", "Requests", lambda: requests)
    metrics.gauge("queued", "Queued", lambda: {"a": 1.0, "b": 2.0}, label="queue")
    requests = 5
    assert [sample for sample in metrics.collect() if "process" not in sample.name] == [
        Sample("requests", "counter", "Requests", 5),
        Sample("queued", "gauge", "Queued", 1.0, (("queue", "a"),)),
        Sample("queued", "gauge", "Queued", 2.0, (("queue", "b"),)),
    ]


def test_a_metric_may_have_several_labels_and_others_next_time() -> None:
    metrics = Metrics()
    names: tuple[str, ...] = ("group", "topic")
    values: dict[tuple[str, ...], float] = {("g", "t"): 3}
    metrics.gauge("lag", "Lag", lambda: values, label=lambda: names)

    def labels() -> list[tuple[tuple[str, str], ...]]:
        return [sample.labels for sample in metrics.collect() if sample.name == "lag"]

    assert labels() == [(("group", "g"), ("topic", "t"))]
    names, values = ("group",), {("h",): 1}
    assert labels() == [(("group", "h"),)]


def test_metrics_may_have_names_that_are_known_when_they_are_read() -> None:
    metrics = Metrics()
    found: list[Sample] = []
    metrics.samples(lambda: found)
    before = len(metrics.collect())
    found.append(Sample("pushed", "gauge", "By a client", 5.0, (("client_id", "c"),)))
    assert metrics.collect()[before:] == found


def test_the_text_for_prometheus_has_one_family_for_all_processes() -> None:
    text = exposition(
        {
            "router-0": [Sample("requests", "counter", "Requests", 5)],
            "router-1": [Sample("requests", "counter", "Requests", 2**53)],
        }
    )
    assert text == (
        "# HELP requests Requests\n# TYPE requests counter\n"
        'requests{process="router-0"} 5\nrequests{process="router-1"} 9007199254740992\n'
    )


# -- the link -------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, SupervisorLink]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, LINK_KIND)
    ours.setblocking(False)
    link = SupervisorLink(theirs, "worker-0")
    yield ours, link
    link.close()
    ours.close()


def heard(ours: socket.socket) -> list[FromChild]:
    messages: list[FromChild] = []
    while True:
        try:
            payload = ours.recv(1 << 16)
        except BlockingIOError:
            return messages
        if not payload:
            return messages
        messages.append(decode_from_child(payload))


def poll_until_told(link: SupervisorLink) -> bool:
    """Most polls do not read the socket: poll until one has."""
    return any(link.poll() for _ in range(2_000_000))


def test_a_child_sends_heartbeats_and_readiness(pair: tuple[socket.socket, SupervisorLink]) -> None:
    ours, link = pair
    assert not link.poll()
    link.send(ProcessReady({"ports": {"PLAINTEXT": 9092}}))
    assert heard(ours) == [ProcessHeartbeat(), ProcessReady({"ports": {"PLAINTEXT": 9092}})]


def test_a_child_is_told_to_stop(pair: tuple[socket.socket, SupervisorLink]) -> None:
    ours, link = pair
    assert not link.poll()
    ours.send(encode_link(StopProcess()))
    assert poll_until_told(link)
    assert link.poll()


def test_a_child_begins_and_ends_the_controlled_shutdown(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    before = link.is_in_controlled_shutdown
    ours.send(encode_link(BeginControlledShutdown()))
    assert not link.poll(), "leaving is not stopping"
    assert (before, link.is_in_controlled_shutdown) == (False, True)
    link.send(ShutdownAllowed())
    assert heard(ours) == [ProcessHeartbeat(), ShutdownAllowed()]


def test_a_child_can_request_a_number_of_workers(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    link.send(ResizeWorkers(4))
    assert heard(ours) == [ResizeWorkers(4)]


def test_a_child_stops_when_its_supervisor_has_ended(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    ours.close()
    assert poll_until_told(link)
    link.send(ProcessReady())


def test_many_metrics_come_in_several_messages(pair: tuple[socket.socket, SupervisorLink]) -> None:
    ours, link = pair
    values = dict.fromkeys(map(str, range(900)), 1.0)
    link.metrics.gauge("bytes", "Bytes", lambda: values, label="n")
    ours.send(encode_link(CollectMetrics()))
    link.poll()
    reports = [message for message in heard(ours) if isinstance(message, MetricsReport)]
    assert sum(len(report.samples) for report in reports) >= 900
    assert [report.is_last for report in reports] == [False] * (len(reports) - 1) + [True]


def test_no_message_of_metrics_is_larger_than_what_is_received(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    values = {f"{n}{'v' * 2_000}": 1.0 for n in range(100)}
    link.metrics.gauge("pushed", "By clients", lambda: values, label="text")
    ours.send(encode_link(CollectMetrics()))
    link.poll()
    reports = [message for message in heard(ours) if isinstance(message, MetricsReport)]
    told = [sample for report in reports for sample in report.samples if sample.name == "pushed"]
    assert len(told) == len(values)
    assert [report.is_last for report in reports] == [False] * (len(reports) - 1) + [True]


def test_metrics_that_must_be_gathered_first_are_handed_over_then(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    ready: list[Callable[[], None]] = []
    link.before_report = ready.append
    ours.send(encode_link(CollectMetrics()))
    link.poll()
    assert not [message for message in heard(ours) if isinstance(message, MetricsReport)]
    ready.pop()()
    assert [message for message in heard(ours) if isinstance(message, MetricsReport)]


def test_booleans_are_one_or_zero(pair: tuple[socket.socket, SupervisorLink]) -> None:
    ours, link = pair
    link.metrics.gauge("leads", "Leads", lambda: True)
    link.metrics.gauge("votes", "Votes", lambda: {"a": False}, label="who")
    ours.send(encode_link(CollectMetrics()))
    link.poll()
    [report] = [message for message in heard(ours) if isinstance(message, MetricsReport)]
    assert [sample.value for sample in report.samples[-2:]] == [1.0, 0.0]


def test_a_supervisor_that_does_not_read_does_not_block_the_child(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    _, link = pair
    for _ in range(10_000):
        link.send(ProcessReady({"text": "x" * 1_000}))
    assert not link.poll()


def test_messages_wait_for_room_in_the_supervisors_buffer(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    values = dict.fromkeys((f"{index}{'x' * 200}" for index in range(4_000)), 1.0)
    link.metrics.gauge("bytes", "Bytes", lambda: values, label="n")
    ours.send(encode_link(CollectMetrics()))
    samples: list[Sample] = []
    is_last = False
    for _ in range(2_000_000):
        link.poll()
        for message in heard(ours):
            assert not is_last
            if isinstance(message, MetricsReport):
                samples += message.samples
                is_last = message.is_last
        if is_last:
            break
    assert [sample.labels[0][1] for sample in samples if sample.labels] == list(values)


def test_an_event_loop_watches_the_link(pair: tuple[socket.socket, SupervisorLink]) -> None:
    ours, link = pair

    async def scenario() -> None:
        stopped = asyncio.Event()
        link.watch(asyncio.get_running_loop(), stopped.set)
        ours.send(encode_link(StopProcess()))
        await asyncio.wait_for(stopped.wait(), 5)

    asyncio.run(scenario())
    assert ProcessHeartbeat() in heard(ours)


def test_a_process_started_by_hand_has_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_ODRADEK_LINK", raising=False)
    with SupervisorLink.connect("worker-0") as link:
        link.send(ProcessReady())
        assert not link.poll()
        assert list(link.sockets) == []


def test_the_link_is_found_by_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, LINK_KIND)
    monkeypatch.setenv("_ODRADEK_LINK", str(theirs.detach()))
    with ours, SupervisorLink.connect("worker-0") as link:
        link.send(ProcessReady())
        assert "_ODRADEK_LINK" not in os.environ
        assert isinstance(decode_from_child(ours.recv(1_000)), ProcessReady)

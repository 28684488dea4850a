"""Metrics on request, a link that never blocks."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from odradek.node.metrics.registry import Sample
from odradek.node.observability import (
    LINK_KIND,
    BeginControlledShutdown,
    CollectMetrics,
    FromChild,
    MetricsReport,
    ProcessHeartbeat,
    ProcessReady,
    ResizeWorkers,
    ShutdownAllowed,
    StopProcess,
    SupervisorLink,
    decode_from_child,
    encode_link,
)


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


def poll_until_idle(link: SupervisorLink, ours: socket.socket) -> list[FromChild]:
    """Poll until nothing is left to send; what was sent."""
    messages: list[FromChild] = []
    link.poll()
    while link.is_busy:
        messages += heard(ours)
        link.poll()
    return messages + heard(ours)


def lines_of(reports: list[MetricsReport]) -> str:
    return "".join(part.lines for report in reports for part in report.parts)


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
    link.metrics.samples(
        lambda: [Sample("bytes", "gauge", "Bytes", 1, (("n", str(n)),)) for n in range(3_000)]
    )
    ours.send(encode_link(CollectMetrics(1)))
    sent = poll_until_idle(link, ours)
    reports = [message for message in sent if isinstance(message, MetricsReport)]
    assert all(report.request_id == 1 for report in reports)
    assert lines_of(reports).count("\nbytes{") == 3_000
    assert [report.is_last for report in reports] == [False] * (len(reports) - 1) + [True]


def test_no_message_of_metrics_is_larger_than_what_is_received(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    texts = [f"{n}{'v' * 2_000}" for n in range(100)]
    link.metrics.samples(
        lambda: [Sample("pushed", "gauge", "By clients", 1, (("text", text),)) for text in texts]
    )
    ours.send(encode_link(CollectMetrics(1)))
    sent = poll_until_idle(link, ours)
    reports = [message for message in sent if isinstance(message, MetricsReport)]
    assert lines_of(reports).count("pushed{") == len(texts)
    assert [report.is_last for report in reports] == [False] * (len(reports) - 1) + [True]


def test_metrics_that_must_be_gathered_first_are_handed_over_then(
    pair: tuple[socket.socket, SupervisorLink],
) -> None:
    ours, link = pair
    ready: list[Callable[[], None]] = []
    link.before_report = ready.append
    ours.send(encode_link(CollectMetrics(1)))
    link.poll()
    assert not [message for message in heard(ours) if isinstance(message, MetricsReport)]
    ready.pop()()
    assert [
        message for message in poll_until_idle(link, ours) if isinstance(message, MetricsReport)
    ]


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
    texts = [f"{index}{'x' * 200}" for index in range(4_000)]
    link.metrics.samples(
        lambda: [Sample("bytes", "gauge", "Bytes", 1, (("n", text),)) for text in texts]
    )
    ours.send(encode_link(CollectMetrics(1)))
    reports: list[MetricsReport] = []
    is_last = False
    for _ in range(2_000_000):
        link.poll()
        for message in heard(ours):
            assert not is_last
            if isinstance(message, MetricsReport):
                reports.append(message)
                is_last = message.is_last
        if is_last:
            break
    found = [line for line in lines_of(reports).splitlines() if line.startswith("bytes{")]
    assert [line.partition('n="')[2].partition('"')[0] for line in found] == texts


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

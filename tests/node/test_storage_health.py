"""Reports of processes about their storage, and what the supervisor makes of them."""

import logging
from pathlib import Path

import pytest

from odradek.node.observability import StorageReport, StorageState
from odradek.node.storage_health import NodeStorage, StorageHealth
from tests.support.log_lines import log_lines

EROFS = "Read-only file system"


def test_a_process_reports_its_first_state_and_each_change_once() -> None:
    sent: list[StorageReport] = []
    health = StorageHealth(sent.append)
    health.set_problem("stores/0", None)
    assert sent == [], "it is not ready yet"
    health.report()
    health.set_problem("stores/0", "the disk is full")
    health.set_problem("stores/1", "the disk is full")
    health.set_problem("stores/0", None)
    health.set_problem("stores/1", None)
    health.set_problem("stores/1", None)
    assert [report.problem for report in sent] == ["", "the disk is full", ""]


def test_a_process_that_starts_with_a_problem_reports_it_before_it_is_ready() -> None:
    sent: list[StorageReport] = []
    health = StorageHealth(sent.append)
    health.set_problem("metadata", EROFS)
    health.report()
    assert sent == [StorageReport(EROFS)]


def test_each_change_of_the_node_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    storage = NodeStorage(Path("/data"))
    assert storage.update("worker-0", f"stores/0: {EROFS}")
    assert storage.update("worker-0", f"stores/1: {EROFS}")
    assert storage.update("controller", f"the metadata log: {EROFS}")
    assert not storage.update("controller", f"the metadata log: {EROFS}")
    assert storage.problem == f"stores/1: {EROFS}; the metadata log: {EROFS}"
    assert storage.update("worker-0", "")
    assert storage.problem == f"the metadata log: {EROFS}"
    assert storage.update("controller", "")
    assert not storage.update("worker-1", "")
    assert (storage.problem, storage.problem_count) == ("", 3)
    assert log_lines(caplog) == [
        "files cannot be written: until they can, writes get KAFKA_STORAGE_ERROR path=/data"
        f" reason='stores/0: {EROFS}' action='free space, or repair the disk'",
        "files can be written again path=/data",
    ]


def test_another_cause_is_another_change(caplog: pytest.LogCaptureFixture) -> None:
    storage = NodeStorage(Path("/data"))
    storage.update("worker-0", "the disk is full")
    storage.update("worker-0", f"stores/0: {EROFS}")
    assert len(log_lines(caplog)) == 2


def test_routers_are_told_which_processes_have_ended_because_of_a_problem() -> None:
    storage = NodeStorage(Path("/data"))
    storage.update("worker-0", EROFS)
    storage.update("worker-1", "the disk is full")
    state = storage.state(["worker-0", "router-0"])
    problems = {"worker-0": EROFS, "worker-1": "the disk is full"}
    assert state == StorageState(problems, frozenset({"worker-0"}))


def test_a_worker_that_is_no_longer_there_has_no_problem() -> None:
    storage = NodeStorage(Path("/data"))
    storage.update("worker-1", EROFS)
    storage.keep(["worker-0"])
    assert storage.problem == ""

"""Requests of a turn."""

from odradek.node.bus.messages import Append
from odradek.node.worker.turn_requests import PreparedAppend, ReplicaAppend
from odradek.storage.log_append import LogAppend


def test_what_comes_back_from_preparation_answers_the_routers_request() -> None:
    request = Append(7, 0, 1, 16, 5)
    append = LogAppend(memoryview(bytearray(5)), 0, 5)
    assert PreparedAppend(0, 1, request, append).request_id == 7


def test_nobody_waits_for_an_answer_to_what_replication_appends() -> None:
    assert ReplicaAppend(0, 1, memoryview(b""), start=0, length=0).request_id == 0

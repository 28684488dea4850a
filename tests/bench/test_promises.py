"""Rows that fall short are named; every promise belongs to a measured row."""

import pytest

from bench import coordinators, one_node, pipeline, real_clients, three_nodes
from bench.cases import CLIENT_CASES, RAW_CASES
from bench.promises import PROMISES, check, cpu_row, shortfalls
from bench.side_by_side import FOOTPRINT_ROWS


def test_rows_that_fall_short_are_named_with_what_was_promised() -> None:
    slow = {"transactions of 1 record, one producer": 1.9, "start to first answered Metadata": 0.4}
    assert shortfalls(slow) == [
        "transactions of 1 record, one producer: 1.90, promised at least 2 times Kafka"
    ]
    late = {"start to first answered Metadata": 1.25, "a row that nobody promised": 1e9}
    assert shortfalls(late) == ["start to first answered Metadata: 1.25, promised at most 1 s"]


def test_a_run_that_falls_short_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    check({"start to first answered Metadata": 0.5})
    with pytest.raises(SystemExit) as caught:
        check({"start to first answered Metadata": 1.5})
    assert caught.value.code == 1
    assert "falls short: start to first answered Metadata" in capsys.readouterr().err


def test_every_promise_is_of_a_row_that_some_benchmark_measures() -> None:
    compared = {case.name for case in RAW_CASES + CLIENT_CASES} | {
        real_clients.case_name(client, in_flight)
        for client in real_clients.CLIENTS
        for in_flight in real_clients.IN_FLIGHT
    }
    compared |= {real_clients.TRANSACTIONS, *real_clients.CONSUMER_ROWS}
    rows = compared | {cpu_row(name) for name in compared}
    rows |= set(FOOTPRINT_ROWS) | {three_nodes.KILL.name, three_nodes.RESTART.name}
    rows |= {coordinators.transactions_name(records, 1) for records in (1, 100)}
    rows |= {figure.name for figure in one_node.FIGURES}
    rows |= {name for load in pipeline.LOADS for name in pipeline.row_names(load)}
    assert set(PROMISES) <= rows

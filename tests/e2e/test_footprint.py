"""The start time of a node, and its memory and CPU time while it is idle.

The figures are printed. The tests assert SLACK times the promises (bench/promises.py), because the
machine runs other things as well.
"""

import time

import pytest

from bench.promises import IDLE_CPU, IDLE_MEMORY_MIB, SLACK, START_S
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.e2e.conftest import Report, StartNode
from tests.e2e.processes import as_text, cpu_seconds, pids_of, resident_mib
from tests.support.wire import WireClient

WATCHED_S = 10.0


def test_a_new_node_answers_metadata_soon(start_node: StartNode, report: Report) -> None:
    begin = time.monotonic()
    node = start_node()
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
    took_s = time.monotonic() - begin
    assert answer.brokers
    report(f"from nothing to the first answered Metadata {took_s:.2f} s")
    assert took_s < START_S * SLACK


@pytest.mark.slow
def test_an_idle_node_needs_little_memory_and_next_to_no_processor(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    with WireClient(node.bootstrap_servers) as wire:
        wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
        pids = pids_of(node)
        before, began_at = cpu_seconds(pids), time.monotonic()
        assert wire.is_silent(WATCHED_S)
        after, watched_s = cpu_seconds(pids), time.monotonic() - began_at
    shares = {name: 100 * (after[name] - before[name]) / watched_s for name in pids}
    resident = resident_mib(pids)
    report(f"idle: {as_text(resident, 'MiB resident')}")
    report(f"idle: {as_text(shares, '% of a core')}")
    assert sum(resident.values()) < IDLE_MEMORY_MIB * SLACK
    assert sum(shares.values()) < 100 * IDLE_CPU * SLACK

"""The standard metrics of a process are those of this process."""

import os
import time

import psutil

from odradek.node.metrics.process_metrics import register_process_metrics
from odradek.node.metrics.registry import Metrics


def test_they_are_those_that_the_system_knows() -> None:
    metrics = Metrics("router-0")
    register_process_metrics(metrics)
    before = metrics.values()
    descriptors = [os.dup(0) for _ in range(3)]
    sum(range(300_000))
    after = metrics.values()
    for descriptor in descriptors:
        os.close(descriptor)
    assert after["process_cpu_seconds_total"] > before["process_cpu_seconds_total"]
    assert after["process_open_fds"] == before["process_open_fds"] + 3
    memory = psutil.Process().memory_info()
    assert abs(after["process_resident_memory_bytes"] - memory.rss) < 0.1 * memory.rss
    assert abs(after["process_virtual_memory_bytes"] - memory.vms) < 0.1 * memory.vms
    assert 0 < after["process_start_time_seconds"] <= time.time()
    assert after["process_max_fds"] >= after["process_open_fds"]

"""What a worker's metrics say of its stores. That all declared families are read, a real node is
asked by tests/node/router/test_router_metrics.py."""

from pathlib import Path

from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.metrics.registry import Metrics
from odradek.node.worker.turnaround_spin import TurnaroundSpin
from odradek.node.worker.worker_metrics import register_storage_metrics
from tests.node.worker.test_turns import TurnBench, batch


def test_appends_are_counted_with_their_bytes(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    metrics = Metrics("worker-0")
    times = DurationHistogram()
    spin = TurnaroundSpin(lambda: False, processors=2)
    register_storage_metrics(metrics, bench.partitions, bench.turns, times, spin)
    batches = [batch(b"a", b"b"), batch(b"c")]
    bench.run(*(bench.stage(index, index, each) for index, each in enumerate(batches)))
    times.observe(1_000_000)
    values = metrics.values()
    assert values["odradek_worker_turn_duration_seconds_count"] == 1
    assert {name: number for name, number in values.items() if "turn_" not in name} == {
        "odradek_appends_total": 2,
        "odradek_worker_spin_seconds_total": 0,
        "odradek_appended_bytes_total": sum(map(len, batches)),
        "odradek_storage_errors_total": 0,
        "odradek_batches_in_preparation": 0,
        "odradek_partitions": 5,
    }

"""A command of ours that is killed in the middle of its work, at a place that a seed chooses."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from odradek.pipeline.kafka_types import LATEST, PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.waiting import wait_until


def run_command(
    arguments: Sequence[str], timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """`odradek ARGUMENTS` to its end."""
    command = [sys.executable, "-m", "odradek", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@contextmanager
def running_command(
    arguments: Sequence[str], *, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`odradek ARGUMENTS` while the block runs; SIGKILL if it runs longer: a test that fails does
    not wait for it."""
    command = [sys.executable, "-m", "odradek", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as child:
        try:
            yield child
        finally:
            child.kill()


def kill_while_it_writes(
    arguments: Sequence[str], bootstrap_servers: str, topic: str, *, seed: int, records_max: int
) -> bool:
    """Start the command and SIGKILL it when it has written up to `records_max` records to the
    topic, committed or not. False if it came to its end before."""
    wanted = log_end(bootstrap_servers, topic) + random.Random(seed).randrange(1, records_max)
    with running_command(arguments, stderr=subprocess.DEVNULL) as child:
        is_there = _either(
            lambda: child.poll() is not None,
            lambda: log_end(bootstrap_servers, topic) >= wanted,
        )
        wait_until(is_there, timeout_s=60, what=f"{wanted} records in {topic}, or the end")
        has_ended = child.poll() is not None
    return not has_ended


def _either(*conditions: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: any(condition() for condition in conditions)


def log_end(bootstrap_servers: str, topic: str) -> int:
    """Of all partitions together; 0 if the topic is not there yet."""
    with KafkaCluster(bootstrap_servers) as cluster:
        view = cluster.topics([topic]).get(topic)
        if view is None:
            return 0
        names = [PartitionName(topic, each) for each in view.partition_ids]
        found = cluster.list_offsets(dict.fromkeys(names, LATEST), read_committed=False)
        return sum(each.offset for each in found.values())

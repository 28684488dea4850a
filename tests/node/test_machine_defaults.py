"""Defaults that a container's limits change."""

import os

import pytest

from odradek.node import machine_defaults
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.machine_defaults import (
    compaction_keys_max,
    default_arena_bytes,
    default_worker_count,
    usable_processors,
)

MIB = 1 << 20


def limit(
    monkeypatch: pytest.MonkeyPatch, *, memory: int | None = None, processors: float | None = None
) -> None:
    """A container with these limits, on a machine of eight processors."""
    monkeypatch.setattr(machine_defaults, "memory_limit_bytes", lambda: memory)
    monkeypatch.setattr(machine_defaults, "processor_limit", lambda: processors)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


@pytest.mark.parametrize(
    ("processors", "usable", "workers"),
    [(None, 8, 4), (0.5, 1, 1), (2.0, 2, 1), (2.5, 3, 2), (64.0, 8, 4)],
)
def test_there_are_no_more_workers_than_processors_may_be_used(
    monkeypatch: pytest.MonkeyPatch, processors: float | None, usable: int, workers: int
) -> None:
    limit(monkeypatch, processors=processors)
    assert usable_processors() == usable
    assert default_worker_count() == workers
    assert configured(profile="standard").worker_count == workers


@pytest.mark.parametrize(
    ("memory", "dev", "standard"),
    [
        (None, 256 * MIB, 1024 * MIB),
        (256 * MIB, 64 * MIB, 64 * MIB),
        (32 * MIB, 16 * MIB, 16 * MIB),
        (2048 * MIB, 256 * MIB, 512 * MIB),
        (64 << 30, 256 * MIB, 1024 * MIB),
    ],
)
def test_requests_get_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, dev: int, standard: int
) -> None:
    limit(monkeypatch, memory=memory)
    assert default_arena_bytes(is_dev=True) == configured(profile="dev").arena_bytes == dev
    assert default_arena_bytes(is_dev=False) == configured().arena_bytes == standard


def test_what_is_configured_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, memory=256 * MIB)
    assert configured(arena_bytes="200MiB").arena_bytes == 200 * MIB
    with pytest.raises(ConfigurationError, match="it must be at least twice"):
        configured(socket_request_max_bytes=str(100 * MIB))


def test_compactions_of_all_workers_get_an_eighth_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch)
    assert compaction_keys_max(worker_count=4) == 400_000
    limit(monkeypatch, memory=256 * MIB)
    assert compaction_keys_max(worker_count=1) == 32 * MIB // 150
    assert compaction_keys_max(worker_count=4) == 8 * MIB // 150
    assert compaction_keys_max(worker_count=64) == 20_000


def configured(**options: str) -> NodeConfig:
    return load(
        environment={}, options={key.replace("_", "."): text for key, text in options.items()}
    )

"""Defaults of settings that depend on the machine, or on what a container may use of it."""

import math
import os
from typing import Final

from odradek.storage.container_limits import memory_limit_bytes, processor_limit

ARENA_BYTES_MIN: Final = 16 << 20
_ARENA_BYTES: Final = {True: 256 << 20, False: 1 << 30}
"""Without a limit, with the profile dev or without it."""
_WORKERS_MAX: Final = 4
_COMPACTION_KEYS: Final = range(20_000, 400_001)
"""Of all keys that are kept in memory by a compaction."""
_COMPACTION_KEY_BYTES: Final = 150


def usable_processors() -> int:
    """The processors of this process's affinity, and no more than its container may use of them."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    limit = processor_limit()
    return count if limit is None else max(1, min(count, math.ceil(limit)))


def default_worker_count() -> int:
    """One per core but one, at most four: the router needs a core of its own."""
    return max(1, min(_WORKERS_MAX, usable_processors() - 1))


def default_arena_bytes(*, is_dev: bool) -> int:
    """The room for requests that are being received: at most a quarter of the container's
    memory."""
    limit = memory_limit_bytes()
    size = _ARENA_BYTES[is_dev]
    return size if limit is None else max(ARENA_BYTES_MIN, min(size, limit // 4))


def compaction_keys_max(*, worker_count: int) -> int:
    """How many keys each worker may keep in memory while it compacts: all workers together need an
    eighth of the container's memory at most. Further keys are in a file."""
    limit = memory_limit_bytes()
    if limit is None:
        return _COMPACTION_KEYS[-1]
    keys = limit // 8 // worker_count // _COMPACTION_KEY_BYTES
    return max(_COMPACTION_KEYS[0], min(keys, _COMPACTION_KEYS[-1]))

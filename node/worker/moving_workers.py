"""Which workers of a node move replicas between log directories: they share one rate.

One byte for each worker in a small file of the run folder, which all workers have mapped. A worker
writes its own byte only. That of a worker that was killed stays until its successor writes it.
"""

import mmap
import os
from pathlib import Path
from typing import Final

_SIZE: Final = mmap.PAGESIZE
_NAME: Final = "moving-workers"


class MovingWorkers:
    """The view of one of `worker_count` workers, whose run folders are the same."""

    def __init__(self, run_folder: Path, worker: int, worker_count: int) -> None:
        assert worker < worker_count <= _SIZE
        self._worker = worker
        self._worker_count = worker_count
        descriptor = os.open(run_folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._bytes = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._is_moving = True
        self.tell(is_moving=False)

    def tell(self, *, is_moving: bool) -> None:
        """Whether this worker moves replicas."""
        if is_moving != self._is_moving:
            self._is_moving = is_moving
            self._bytes[self._worker] = is_moving

    @property
    def count(self) -> int:
        """The workers that move replicas; at least one."""
        return max(1, self._bytes[: self._worker_count].count(1))

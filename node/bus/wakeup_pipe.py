"""Wakeup pipes: how a process that wrote to a ring wakes the sleeping reader.

A named pipe in the run folder. The sleeping process polls the descriptor like any other. Waking it
is a write of one byte. A full pipe wakes it anyway. A pipe without a reader means that the process
is gone.
"""

import contextlib
import os
from pathlib import Path
from typing import Self


class WakeupPipe:
    """The reading end, of the sleeping process. It creates the pipe anew."""

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.mkfifo(path, 0o600)
        # Writable too: a pipe whose last writer has left would be readable for ever.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable after a write. Level-triggered."""
        return self._file

    def clear(self) -> None:
        try:  # noqa: SIM105  # suppress() takes as long as the read
            os.read(self._file, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the pipe. Later writes fail."""
        os.close(self._file)


class WakeupWriter:
    """The writing end, of a process that wakes another."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open the writing end. None if there is no reader."""
        try:
            return cls(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return None

    def wake(self) -> bool:
        """Wake the process. False if it is gone."""
        try:
            os.write(self._file, b"!")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the writing end."""
        os.close(self._file)

"""A bell: how a process that put something into a ring wakes the one that sleeps before it.

A named pipe in the run folder. Its reader watches the descriptor like any other; ringing is one
write of one byte, straight to the thread that sleeps. A full pipe has been rung enough. A pipe
without a reader says that the process is gone.
"""

import contextlib
import os
from pathlib import Path
from typing import Self


class WakeupPipe:
    """The end of the one who sleeps. There is one reader per path, and it makes the pipe anew."""

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.mkfifo(path, 0o600)
        # Writable too: a pipe whose last writer has left would be readable for ever.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable when the bell was rung; level-triggered."""
        return self._file

    def quiet(self) -> None:
        """Take the ringing in."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 4096)

    def close(self) -> None:
        """Be gone: whoever rings is told."""
        os.close(self._file)


class WakeupWriter:
    """The end of one who rings."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """The ringer of a bell; None when nobody would hear it."""
        try:
            return cls(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return None

    def ring(self) -> bool:
        """Wake the sleeper; False when it is gone."""
        try:
            os.write(self._file, b"!")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Ring no more."""
        os.close(self._file)

"""Where `produce` takes its records from: arguments, a file, a pipe, or somebody who types."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordInput:
    """The texts of the records: `values`, else the lines of `file`, else those of standard input.
    `is_raw`: the whole of it is one text."""

    values: tuple[str, ...] = ()
    file: Path | None = None
    is_raw: bool = False

    @property
    def is_stdin(self) -> bool:
        """Whether it is read from standard input."""
        return not self.values and (self.file is None or str(self.file) == "-")

    @property
    def is_typed(self) -> bool:
        """Whether somebody types it."""
        return self.is_stdin and sys.stdin.isatty()

    @property
    def is_endless(self) -> bool:
        """Whether it may be meant to end by an interruption: it is typed or comes from a pipe."""
        return not self.values and self.byte_count is None

    @property
    def byte_count(self) -> int | None:
        """The bytes of a file, also of one that is standard input; None if they are not known."""
        if self.values:
            return None
        try:
            if not self.is_stdin:
                assert self.file is not None
                return _file_bytes(os.stat(self.file))
            descriptor = sys.stdin.fileno()
            size = _file_bytes(os.fstat(descriptor))
            return None if size is None else size - os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError:  # standard input is no file
            return None

    def texts(self) -> Iterator[bytes]:
        """Each text without its line end."""
        if self.values:
            yield from (value.encode() for value in self.values)
            return
        with self._stream() as lines:
            if self.is_raw:
                yield lines.read()
            else:
                yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)

    def _stream(self) -> AbstractContextManager[BinaryIO]:
        if self.file is not None and not self.is_stdin:
            return self.file.open("rb")
        if self.is_typed:
            click.echo("Type records, one a line; end with Ctrl-D.", err=True)
        return nullcontext(sys.stdin.buffer)


def _file_bytes(found: os.stat_result) -> int | None:
    return found.st_size if stat.S_ISREG(found.st_mode) else None

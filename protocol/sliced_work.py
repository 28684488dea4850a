"""Long work as a generator, for callers with other clients to serve.

It yields None after a slice of about a millisecond, and a function that takes long without the GIL
(it compresses or decompresses), whose result it is sent. `finish` runs it where nobody else waits.
"""

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
SlicedWork: TypeAlias = Generator[Callable[[], bytes | None] | None, bytes | None, T]


def finish(work: SlicedWork[T]) -> T:
    """The result of the work, done at a stretch."""
    content: bytes | None = None
    while True:
        try:
            task = work.send(content)
        except StopIteration as stop:
            result: T = stop.value
            return result
        content = None if task is None else task()

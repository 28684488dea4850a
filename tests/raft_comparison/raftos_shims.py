"""What raftos 0.2.6 needs to run on today's Python. Nothing of its logic is touched.

Its modules `state` and `server` look names up in `asyncio` that are gone: each gets an `asyncio` of
its own that has them and is the real one otherwise.

- `asyncio.futures.InvalidStateError` (gone since 3.8): looked up whenever a member without a
  waiting client applies an entry; without it, every follower fails there.
- The argument `loop` of `asyncio.Queue` (gone since 3.10): without it, no node starts. Only its UDP
  server needs this.
"""

import asyncio
import importlib
from types import ModuleType


class _FuturesOfThen:
    InvalidStateError = asyncio.InvalidStateError

    def __getattr__(self, name: str) -> object:
        found: object = getattr(asyncio.futures, name)
        return found


class _AsyncioOfThen:
    futures = _FuturesOfThen()

    def __getattr__(self, name: str) -> object:
        found: object = getattr(asyncio, name)
        return found

    @staticmethod
    def Queue(*, loop: asyncio.AbstractEventLoop) -> "asyncio.Queue[object]":
        return asyncio.Queue()


def import_raftos() -> ModuleType:
    """The patched raftos. ImportError where it is not installed."""
    raftos = importlib.import_module("raftos")
    for name in ("state", "server"):
        vars(importlib.import_module(f"raftos.{name}"))["asyncio"] = _AsyncioOfThen()
    return raftos

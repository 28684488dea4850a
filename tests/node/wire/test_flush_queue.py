"""The queue of connections to write to. What a connection writes is tested with it."""

import asyncio

import pytest

from odradek.node.wire.flush_queue import FlushQueue
from tests.support.log_lines import log_text


class Written:
    """Counts, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.flushed = self.aborted = 0
        self._fails = fails

    def flush(self) -> None:
        self.flushed += 1
        if self._fails:
            raise RuntimeError

    def abort(self) -> None:
        self.aborted += 1

    def log_fields(self) -> dict[str, object]:
        return {"client_address": "10.0.0.9"}


def test_all_are_written_in_one_iteration_also_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        queue = FlushQueue(asyncio.get_running_loop())
        first, bad, last = Written(), Written(fails=True), Written()
        for each in (first, bad, last):
            queue.add(each)
        assert [each.flushed for each in (first, bad, last)] == [0, 0, 0]
        await asyncio.sleep(0)
        assert [each.flushed for each in (first, bad, last)] == [1, 1, 1]
        assert [each.aborted for each in (first, bad, last)] == [0, 1, 0]
        queue.add(first)
        queue.flush()
        await asyncio.sleep(0)
        assert [each.flushed for each in (first, bad, last)] == [2, 1, 1]

    asyncio.run(scenario())
    assert "closing its connection" in log_text(caplog)

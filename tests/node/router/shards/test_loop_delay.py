"""The delay of the event loop, measured by its timers."""

import asyncio

import pytest

from odradek.node.router.shards.loop_delay import LoopDelayMonitor


def test_the_delay_rises_while_timers_are_late_and_falls_again() -> None:
    """Long turns of the loop raise the average, which falls again."""
    told: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        is_told = asyncio.Event()

        def tell(loop_delay_ms: int) -> None:
            told.append(loop_delay_ms)
            is_told.set()

        monitor = LoopDelayMonitor(loop, tell)
        while not told or told[-1] < 100:
            # A turn in which nothing else can happen: what is measured.
            end = loop.time() + 0.6
            while loop.time() < end:
                pass
            await asyncio.sleep(0)
        peak = told[-1]
        while told[-1] > peak / 2:
            is_told.clear()
            await is_told.wait()
        monitor.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert max(told) >= 100
    assert told[-1] <= max(told) / 2


def test_nothing_is_reported_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    loop = asyncio.new_event_loop()
    try:
        monkeypatch.setattr("odradek.node.router.shards.loop_delay.PULSE_S", 0.0)
        monitor = LoopDelayMonitor(loop, told.append)
        loop.run_until_complete(asyncio.sleep(0.01))
        assert told
        monitor.close()
        told.clear()
        loop.run_until_complete(asyncio.sleep(0.01))
        assert not told
    finally:
        loop.close()

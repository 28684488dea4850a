"""Long lists leave others their turns."""

import asyncio

from node.router.pacing import ITEMS_PER_TURN, in_turns


async def _turns_of(count: int) -> tuple[list[int], int]:
    """The items, and how many turns others had meanwhile."""
    turns = 0
    is_over = False

    async def others() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        items = [item async for item in in_turns(range(count))]
        had = turns
        is_over = True
    return items, had


def test_a_short_list_comes_at_once() -> None:
    assert asyncio.run(_turns_of(ITEMS_PER_TURN)) == (list(range(ITEMS_PER_TURN)), 0)


def test_others_have_their_turn_in_a_long_list() -> None:
    items, turns = asyncio.run(_turns_of(4 * ITEMS_PER_TURN))
    assert items == list(range(4 * ITEMS_PER_TURN))
    assert turns == 3

"""The table of docs/coordinators/streams.md agrees with the machine of streams groups."""

from functools import partial

import pytest

from odradek.coordinator.group.settings import GroupSettings
from tests.support.streams_cases import SLOW_STREAMS, StreamsGroupScenario, streams_scenes
from tests.support.streams_playbook import STREAMS
from tests.support.transition_check import check, observed, walk
from tests.support.transition_table import read

DOCUMENT = "streams.md"


def test_streams_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Streams groups"), observed(streams_scenes()))


@pytest.mark.parametrize("settings", [STREAMS, SLOW_STREAMS], ids=["at once", "later"])
@pytest.mark.parametrize("seed", range(2))
def test_random_walks_of_streams_groups_stay_within_the_table(
    seed: int, settings: GroupSettings
) -> None:
    states = walk(read(DOCUMENT, "Streams groups"), partial(StreamsGroupScenario, settings), seed)
    assert states >= {"none", "NotReady", "Reconciling" if settings is STREAMS else "Assigning"}

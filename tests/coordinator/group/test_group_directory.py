"""The groups of a shard in ListGroups and DescribeGroups."""

import pytest

from odradek.coordinator.group.requests import DescribeGroup
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DescribedGroup
from tests.support.consumer_playbook import Stage


def stage_of_all_kinds() -> Stage:
    stage = Stage()
    stage.stable(group="classic")
    stage.send_heartbeat("m", group="consumer")
    stage.commit({("a", 0): 1}, group="simple")
    return stage


def test_every_type_of_group_is_listed_once() -> None:
    stage = stage_of_all_kinds()
    listed = {name: (g.group_type, g.group_state) for name, g in stage.list_groups().items()}
    assert listed == {
        "classic": ("classic", "Stable"),
        "consumer": ("consumer", "Stable"),
        "simple": ("classic", "Empty"),
    }


def test_a_group_is_described_as_its_type() -> None:
    stage = stage_of_all_kinds()
    names = ("classic", "consumer", "simple", "none")
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert [stage.describe(name).error_code for name in names] == [0, missing, 0, missing]
    codes = [stage.describe_consumers(name).error_code for name in names]
    assert codes == [missing, 0, missing, missing]


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [(5, ErrorCode.NONE, None), (6, ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found.")],
)
def test_an_unknown_group_is_dead_and_an_error_since_version_6(
    version: int, code: ErrorCode, message: str | None
) -> None:
    found = Stage().ask(DescribeGroup("none"), version=version).response(DescribedGroup)
    assert (found.group_state, found.error_code, found.error_message) == ("Dead", code, message)


def test_a_group_of_another_type_is_not_a_consumer_group() -> None:
    stage = stage_of_all_kinds()
    message = stage.describe_consumers("classic").error_message
    assert message == "Group classic is not a consumer group."
    assert stage.describe_consumers("none").error_message == "Group none not found."


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        ([], [], {"classic", "consumer", "simple"}),
        (["STABLE"], ["Consumer"], {"consumer"}),
        (["empty"], [], {"simple"}),
        ([], ["classic"], {"classic", "simple"}),
    ],
)
def test_filters_of_list_groups_ignore_case(
    states: list[str], types: list[str], listed: set[str]
) -> None:
    stage = stage_of_all_kinds()
    assert stage.list_groups(states=states, types=types).keys() == listed

"""Which groups there are, and how they look."""

from odradek.protocol.errors import ErrorCode
from tests.support.consumer_playbook import Stage


def stage_of_all_kinds() -> Stage:
    stage = Stage()
    stage.stable(group="classic")
    stage.beat("m", group="consumer")
    stage.commit({("a", 0): 1}, group="simple")
    return stage


def test_every_kind_of_group_is_listed_once() -> None:
    stage = stage_of_all_kinds()
    listed = {name: (g.group_type, g.group_state) for name, g in stage.list_groups().items()}
    assert listed == {
        "classic": ("classic", "Stable"),
        "consumer": ("consumer", "Stable"),
        "simple": ("classic", "Empty"),
    }


def test_a_group_is_described_as_what_it_is() -> None:
    stage = stage_of_all_kinds()
    names = ("classic", "consumer", "simple", "none")
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert [stage.describe(name).error_code for name in names] == [0, missing, 0, missing]
    codes = [stage.describe_consumers(name).error_code for name in names]
    assert codes == [missing, 0, missing, missing]

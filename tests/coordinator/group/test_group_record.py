"""Every record outside of a transaction names its group."""

from typing import get_args, get_type_hints

import pytest

from odradek.coordinator.group.records import OwnRecord


@pytest.mark.parametrize("record", get_args(OwnRecord))
def test_every_record_names_its_group(record: type) -> None:
    assert get_type_hints(record)["group_id"] is str

"""What goes with a group when it expires or is deleted, and what stays with one that does not."""

from coordinator.group.requests import TakeSnapshot
from coordinator.group.settings import GroupSettings
from tests.support.rewind_playbook import TOPIC, RewindStage

A0, A1 = (TOPIC, 0), (TOPIC, 1)
SHORT = GroupSettings(offsets_retention_ms=1_000, retention_check_interval_ms=100)


def rewound_stage() -> RewindStage:
    stage = RewindStage(settings=SHORT)
    stage.commit({A0: 7})
    stage.rewind({A0: 3})
    stage.ask(TakeSnapshot("g", "s"))
    return stage


def test_undo_points_and_snapshots_go_with_the_last_offset() -> None:
    stage = rewound_stage()
    stage.tick(900)
    stage.commit({A1: 7})
    stage.tick(500)
    assert stage.fetch_all() == {A1: 7}
    assert stage.shard.rewinds.undo_points("g")
    assert stage.shard.rewinds.snapshots("g")
    stage.tick(1_000)
    assert not stage.shard.rewinds.tombstones("g")
    assert "g" not in stage.list_groups()


def test_a_deleted_group_leaves_nothing_in_the_log() -> None:
    stage = rewound_stage()
    stage.delete_group()
    newest: dict[bytes, bytes | None] = dict(stage.log)
    assert set(newest.values()) == {None}

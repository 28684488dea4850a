"""Expiration and deletion of groups, with all that belongs to them."""

from odradek.coordinator.group.administration.group_cleanup import offset_expiration
from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.coordinator.group.offsets.committed_offsets import OffsetExpiration
from odradek.coordinator.group.requests import DeleteGroup, DropTopicOffsets
from odradek.coordinator.group.rewind.records import OffsetMove
from odradek.coordinator.group.rewind.requests import TakeSnapshot
from odradek.coordinator.group.settings import GroupSettings
from tests.support.consumer_playbook import id_of
from tests.support.rewind_playbook import TOPIC, RewindStage
from tests.support.share_group_playbook import ShareStage

A0, A1 = (TOPIC, 0), (TOPIC, 1)
SHORT = GroupSettings(offsets_retention_ms=1_000, retention_check_interval_ms=100)


def rewound_stage() -> RewindStage:
    stage = RewindStage(settings=SHORT)
    stage.commit({A0: 7})
    stage.rewind({A0: 3})
    stage.ask(TakeSnapshot("g", "s"))
    return stage


def test_undo_points_and_snapshots_expire_with_the_last_offset() -> None:
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


def test_undo_points_expire_after_their_topics_were_deleted() -> None:
    """A group with offsets only does not exist without them."""
    stage = rewound_stage()
    stage.ask(DropTopicOffsets(((TOPIC, id_of(TOPIC)),)))
    assert "g" not in stage.list_groups()
    assert stage.shard.rewinds.tombstones("g")
    stage.tick(500)
    assert not stage.shard.rewinds.tombstones("g")


def test_snapshots_of_a_share_group_are_deleted_with_it() -> None:
    stage = ShareStage({TOPIC: 2})
    stage.share("m")
    stage.keep_states()
    stage.ask(TakeSnapshot("s", "n", (OffsetMove(TOPIC, id_of(TOPIC), 1, 5),)))
    assert stage.shard.rewinds.snapshots("s")
    stage.share("m", -1)
    stage.ask(DeleteGroup("s"))
    stage.keep_states()
    assert "s" not in stage.list_groups()
    assert not stage.shard.rewinds.tombstones("s")


def test_the_expiration_of_offsets_depends_on_the_group() -> None:
    assert offset_expiration(None, None, frozenset({"a"})) == OffsetExpiration(
        None, frozenset({"a"})
    )
    assert offset_expiration(None, None, None) == OffsetExpiration(None)
    empty = GroupMetadata(protocol_type="consumer", state_timestamp_ms=5)
    assert offset_expiration(None, empty, None) == OffsetExpiration(5)

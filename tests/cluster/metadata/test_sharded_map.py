"""A sharded map is like a dictionary that is copied with every change."""

import random

import pytest

from odradek.cluster.metadata import sharded_map
from odradek.cluster.metadata.sharded_map import ShardedMap


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_those_of_a_dictionary(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_map, "_MASK", 7)  # several keys in a shard
    chance = random.Random(seed)
    model: dict[str, int] = {}
    present: ShardedMap[str, int] = ShardedMap()
    for _ in range(50):
        before, model_before = present, dict(model)
        changes = {
            f"key-{chance.randrange(40)}": chance.choice([None, chance.randrange(9)])
            for _ in range(chance.randrange(10))
        }
        present = before.after(changes)
        for key, value in changes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        for checked, expected in ((before, model_before), (present, model)):
            assert sorted(checked.values()) == sorted(expected.values()), f"seed {seed}"
            for number in range(40):
                key = f"key-{number}"
                assert checked.get(key) == expected.get(key), f"seed {seed}"
                assert (key in checked) == (key in expected), f"seed {seed}"


def test_a_missing_key_has_the_default() -> None:
    present = ShardedMap[str, int]().after({"a": 1})
    assert present["a"] == 1
    assert present.get("b", 5) == 5
    with pytest.raises(KeyError):
        present["b"]


def test_what_does_not_change_is_shared() -> None:
    before = ShardedMap[int, int]().after(dict.fromkeys(range(10_000), 1))
    after = before.after({5: 2})
    different = [one is not other for one, other in zip(before._shards, after._shards, strict=True)]
    assert sum(different) == 1

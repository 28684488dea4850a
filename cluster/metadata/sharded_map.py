"""A mapping that never changes, and of which a changed copy costs what was changed.

The keys are in SHARD_COUNT dictionaries by their hash. `after` copies those that are touched and
shares the others, where a copy of one dictionary with 100,000 keys takes milliseconds. For parts of
the metadata image that have very many keys and are looked up seldom: a lookup takes about 0.1 us
longer than that of a dictionary.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

SHARD_COUNT: Final = 4096
"""A power of two. With 100,000 keys a shard has 24."""
_MASK: Final = SHARD_COUNT - 1


class ShardedMap(Generic[K, V]):
    """See the module's docstring. The order of the keys is not that in which they were added."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        empty: Mapping[K, V] = MappingProxyType({})
        self._shards: list[Mapping[K, V]] = [empty] * SHARD_COUNT

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) & _MASK]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: V | D | None = None) -> V | D | None:
        """The value of a key, or the default."""
        return self._shards[hash(key) & _MASK].get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & _MASK][key]

    def values(self) -> Iterator[V]:
        """All values."""
        for shard in self._shards:
            yield from shard.values()

    def after(self, changes: Mapping[K, V | None]) -> "ShardedMap[K, V]":
        """This with some values set and, where the new value is null, some keys removed. What is
        removed may be missing."""
        result: ShardedMap[K, V] = ShardedMap.__new__(ShardedMap)
        shards = result._shards = self._shards.copy()
        copies: dict[int, dict[K, V]] = {}
        for key, value in changes.items():
            at = hash(key) & _MASK
            shard = copies.get(at)
            if shard is None:
                shards[at] = shard = copies[at] = dict(shards[at])
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
        return result

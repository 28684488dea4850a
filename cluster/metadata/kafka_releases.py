"""Kafka's releases and the feature levels that belong to them, as its tools know them.

A level of metadata.version has a name, `4.2-IV1`; a release, `4.2` or `4.2.0`, is its highest one.
Other features have a default level from some level of metadata.version on. Tools on this side of
the wire need that: requests and responses have only levels (KIP-584, KIP-1022).
"""

import re
from collections.abc import Mapping
from typing import Final

from odradek.cluster.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    GROUP_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)

_FIRST_LEVEL: Final = 7
_NAMES: Final = (
    "3.3-IV3",
    "3.4-IV0",
    *("3.5-IV0", "3.5-IV1", "3.5-IV2"),
    *("3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4"),
    "3.8-IV0",
    "3.9-IV0",
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3"),
    *("4.1-IV0", "4.1-IV1"),
    *("4.2-IV0", "4.2-IV1"),
    "4.3-IV0",
)
"""The levels of metadata.version from _FIRST_LEVEL on: those that Kafka 4.3 supports."""
_LEVEL_OF: Final = {name: level for level, name in enumerate(_NAMES, _FIRST_LEVEL)}
RELEASES: Final = tuple(dict.fromkeys(name.partition("-")[0] for name in _NAMES))
"""Oldest first."""
_DEFAULTS: Final[Mapping[str, tuple[str, int]]] = {
    KRAFT_VERSION: ("3.9-IV0", 1),
    GROUP_VERSION: ("4.0-IV0", 1),
    TRANSACTION_VERSION: ("4.0-IV2", 2),
    ELIGIBLE_LEADER_REPLICAS_VERSION: ("4.1-IV0", 1),
    SHARE_VERSION: ("4.2-IV0", 1),
    STREAMS_VERSION: ("4.2-IV1", 1),
}
"""From which level of metadata.version on a feature has which default; before it is off."""


def metadata_version_name(level: int) -> str | None:
    """`4.2-IV1`, say; None for a level of a release that is not known here."""
    index = level - _FIRST_LEVEL
    return _NAMES[index] if 0 <= index < len(_NAMES) else None


def metadata_version_level(name: str) -> int | None:
    """The level of `4.2-IV0`, or the highest of `4.2` or `4.2.1`; None for an unknown name."""
    if name in _LEVEL_OF:
        return _LEVEL_OF[name]
    release = re.fullmatch(r"([0-9]+\.[0-9]+)(\..+)?", name)
    if release is None:
        return None
    levels = [level for each, level in _LEVEL_OF.items() if each.startswith(f"{release[1]}-")]
    return max(levels, default=None)


def release_levels(metadata_level: int) -> dict[str, int]:
    """The level of every feature in a release, given by its level of metadata.version."""
    defaults = {
        feature: level if metadata_level >= _LEVEL_OF[since] else 0
        for feature, (since, level) in _DEFAULTS.items()
    }
    return {METADATA_VERSION: metadata_level, **defaults}

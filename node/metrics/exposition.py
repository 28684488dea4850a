"""The two texts in which Prometheus reads metrics: its own format, and OpenMetrics 1.0.

The lines of series are the same in both; what stands before a family's lines, and the end, are not.
Which one is sent is decided by the Accept header, as Prometheus' client libraries do. The caller is
the supervisor, with the lines that all processes of the node have rendered.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from odradek.node.metrics.family import MetricKind, base_name, unit_of
from odradek.node.metrics.registry import FamilyLines

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_UNKNOWN: Final = "unknown"


class _Merged(NamedTuple):
    kind: str
    help: str
    lines: list[str]


def prefers_openmetrics(accept: str) -> bool:
    """Whether a client with this Accept header would rather have OpenMetrics."""
    return _quality(accept, "application/openmetrics-text") > 0.0 and _quality(
        accept, "application/openmetrics-text"
    ) >= _quality(accept, "text/plain")


def _quality(accept: str, wanted: str) -> float:
    """The weight of a media type in an Accept header; 0 if it is not named."""
    for each in accept.split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        if media_type.lower() != wanted:
            continue
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                try:
                    return float(value)
                except ValueError:
                    return 0.0
        return 1.0
    return 0.0


def exposition(parts: Iterable[FamilyLines], *, is_openmetrics: bool = False) -> str:
    """All families in the order of their names, each once."""
    families: dict[str, _Merged] = {}
    for part in parts:
        merged = families.get(part.name)
        if merged is None:
            merged = families[part.name] = _Merged(part.kind, part.help, [])
        merged.lines.append(part.lines)
    text: list[str] = []
    head = _openmetrics_head if is_openmetrics else _text_head
    taken: set[str] = set()
    for name, merged in sorted(families.items()):
        text += head(name, merged, families, taken)
        text += merged.lines
    if is_openmetrics:
        text.append("# EOF\n")
    return "".join(text)


def _text_head(name: str, merged: _Merged, _families: object, _taken: object) -> Iterable[str]:
    kind = MetricKind.GAUGE if merged.kind == MetricKind.INFO else merged.kind
    yield f"# HELP {name} {merged.help}\n"
    yield f"# TYPE {name} {kind}\n"


def _openmetrics_head(
    name: str, merged: _Merged, families: dict[str, _Merged], taken: set[str]
) -> Iterable[str]:
    kind: str = merged.kind
    base = base_name(name, kind)
    if (kind in (MetricKind.COUNTER, MetricKind.INFO) and base == name) or (
        base != name and (base in families or base in taken)
    ):
        # Clients push names of their own choice: without the suffix, or one beside another.
        kind, base = _UNKNOWN, name
    taken.add(base)
    yield f"# TYPE {base} {kind}\n"
    unit = unit_of(base)
    if unit and kind != MetricKind.INFO:
        yield f"# UNIT {base} {unit}\n"
    yield f"# HELP {base} {merged.help}\n"

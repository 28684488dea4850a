"""A dialogue about client quotas, and what Apache Kafka answers to it.

`KAFKA_ANSWERS` was recorded from Apache Kafka 4.3.1 with

    python -m tests.support.quota_dialogue HOST:PORT

which asks a broker without quotas every question in order, and removes all quotas at the end.
Entities are listed in the order of their text, as Kafka's order is that of a hash table.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from odradek.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from tests.support.wire import WireClient

V = TypeVar("V")

KAFKA_ANSWERS: Final = Path(__file__).with_name("client_quotas_kafka_4_3_1.json")

Entity: TypeAlias = dict[str, str | None] | list[tuple[str, str | None]]
Change: TypeAlias = tuple[Entity, dict[str, float | None] | list[tuple[str, float | None]]]
Filter: TypeAlias = list[tuple[str, int, str | None]]

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
PERCENTAGE, MUTATIONS = "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"
SMALL: Final[dict[str, float | None]] = {PRODUCER: 1024.0}

ALTERATIONS: Final[dict[str, list[Change]]] = {
    "every level": [
        ({"user": "ann", "client-id": "app"}, {PRODUCER: 1024.0, CONSUMER: 2048.0}),
        ({"user": "ann", "client-id": None}, {PRODUCER: 1025.0}),
        ({"user": "ann"}, {PRODUCER: 1026.0, PERCENTAGE: 12.5, MUTATIONS: 0.5}),
        ({"user": None, "client-id": "app"}, {PRODUCER: 1027.0}),
        ({"user": None, "client-id": None}, {PRODUCER: 1028.0}),
        ({"user": None}, {PRODUCER: 1029.0}),
        ({"client-id": "app"}, {PRODUCER: 1030.0}),
        ({"client-id": None}, {CONSUMER: 1031.0}),
        ({"ip": "127.0.0.9"}, {CONNECTIONS: 100.0}),
        ({"ip": None}, {CONNECTIONS: 1000.0}),
        ({"ip": "localhost"}, {CONNECTIONS: 101.0}),
        ({"ip": "2001:db8::1"}, {CONNECTIONS: 102.0}),
    ],
    "no entity": [([], SMALL)],
    "unknown type": [({"group": "g"}, SMALL)],
    "unknown type beside a user": [({"user": "u", "group": "g"}, SMALL)],
    "empty type": [({"": "g"}, SMALL)],
    "empty user": [({"user": ""}, SMALL)],
    "empty client id": [({"client-id": ""}, SMALL)],
    "empty ip": [({"ip": ""}, {CONNECTIONS: 1.0})],
    "ip with user": [({"ip": "127.0.0.1", "user": "u"}, {CONNECTIONS: 1.0})],
    "ip that cannot be resolved": [({"ip": "no such host.invalid"}, {CONNECTIONS: 1.0})],
    "ip that is none": [({"ip": "300.0.0.1"}, {CONNECTIONS: 1.0})],
    "key of clients for an ip": [({"ip": "127.0.0.1"}, SMALL)],
    "key of ips for a user": [({"user": "u"}, {CONNECTIONS: 1.0})],
    "unknown key": [({"user": "u"}, {"bytes": 1.0})],
    "unknown key that is removed": [({"user": "u"}, {"bytes": None})],
    "zero": [({"user": "u"}, {PRODUCER: 0.0})],
    "negative": [({"user": "u"}, {CONSUMER: -1.0})],
    "fraction of a byte": [({"user": "u"}, {CONSUMER: 1.5})],
    "fraction of a connection": [({"ip": "127.0.0.1"}, {CONNECTIONS: 1.5})],
    "too many connections": [({"ip": "127.0.0.1"}, {CONNECTIONS: 2147483648.0})],
    "too many bytes": [({"user": "u"}, {PRODUCER: 1e19})],
    "very small fraction": [({"user": "u"}, {PERCENTAGE: 0.001})],
    "one bad key of two": [({"user": "u"}, [(PRODUCER, 1.0), (CONSUMER, -1.0)])],
    "key named twice": [({"user": "u"}, [(PRODUCER, 1.0), (PRODUCER, 2.0)])],
    # Kafka carries out the first of two, and answers that both have failed. Here it has no effect.
    "entity named twice": [({"user": "u2"}, {PRODUCER: None}), ({"user": "u2"}, {CONSUMER: 2.0})],
    "type named twice": [([("user", "a"), ("user", "b")], SMALL)],
    "good and bad entities": [({"user": "u3"}, SMALL), ({"user": ""}, SMALL)],
    "no changes": [({"user": "u4"}, {})],
    "removal of what is not there": [({"user": "u5"}, {PRODUCER: None})],
    "removal": [({"user": "ann"}, {PRODUCER: None, "request_percentage": None})],
}
FILTERS: Final[dict[str, tuple[Filter, bool]]] = {
    "everything": ([], False),
    "nothing, strictly": ([], True),
    "the user": ([("user", EXACT, "ann")], False),
    "the user only": ([("user", EXACT, "ann")], True),
    "the default user": ([("user", DEFAULT, None)], False),
    "the default user only": ([("user", DEFAULT, None)], True),
    "any user": ([("user", ANY, None)], False),
    "any user only": ([("user", ANY, None)], True),
    "any client id of the user": ([("user", EXACT, "ann"), ("client-id", ANY, None)], True),
    "any client id": ([("client-id", ANY, None)], False),
    "any ip": ([("ip", ANY, None)], False),
    "an ip": ([("ip", EXACT, "127.0.0.9")], True),
    "the default ip": ([("ip", DEFAULT, None)], True),
    "an ip that has none": ([("ip", EXACT, "127.0.0.1")], True),
    "ip with user": ([("ip", ANY, None), ("user", ANY, None)], False),
    "exact without a name": ([("user", EXACT, None)], False),
    "default with a name": ([("user", DEFAULT, "ann")], False),
    "any with a name": ([("user", ANY, "ann")], False),
    "unknown match type": ([("user", 3, None)], False),
    "unknown type": ([("group", ANY, None)], False),
    "empty type": ([("", ANY, None)], False),
    "type named twice": ([("user", ANY, None), ("user", EXACT, "ann")], False),
}


def answers(wire: WireClient, *, is_visible_later: bool = False) -> Iterator[tuple[str, object]]:
    """The questions in order, each with the broker's answer. With `is_visible_later`, a change is
    waited for before the next question: Kafka answers before its broker knows of it."""
    for name, changes in ALTERATIONS.items():
        yield f"validate {name}", _alter(wire, changes, validate_only=True)
        yield f"alter {name}", _alter(wire, changes)
        if is_visible_later:
            time.sleep(0.3)
        if name == "every level":
            for version in (0, 1):
                for filter_name, (components, strict) in FILTERS.items():
                    asked = _describe(wire, components, strict=strict, version=version)
                    yield f"describe v{version} {filter_name}", asked
    yield "describe at the end", _describe(wire, [], strict=False)
    remove_all(wire)
    if is_visible_later:
        time.sleep(0.3)
    yield "describe after the removal", _describe(wire, [], strict=False)


def alter(
    wire: WireClient, changes: list[Change], *, validate_only: bool = False, version: int = 1
) -> AlterClientQuotasResponse:
    """The answer to AlterClientQuotas; a value that is null is removed."""
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[
                EntityData(entity_type=kind, entity_name=name) for kind, name in _pairs(entity)
            ],
            ops=[
                OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in _pairs(values)
            ],
        )
        for entity, values in changes
    ]
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    return wire.ask(request, version, AlterClientQuotasResponse)


def remove_all(wire: WireClient) -> None:
    """Remove all quotas of the broker."""
    request = DescribeClientQuotasRequest(components=[], strict=False)
    entries = wire.ask(request, 1, DescribeClientQuotasResponse).entries or []
    changes: list[Change] = [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [(value.key, None) for value in entry.values],
        )
        for entry in entries
    ]
    alter(wire, changes)


def _alter(wire: WireClient, changes: list[Change], *, validate_only: bool = False) -> object:
    response = alter(wire, changes, validate_only=validate_only)
    return sorted(
        [
            [
                sorted((part.entity_type, part.entity_name) for part in entry.entity),
                entry.error_code,
                entry.error_message,
            ]
            for entry in response.entries
        ],
        key=str,
    )


def _describe(wire: WireClient, components: Filter, *, strict: bool, version: int = 1) -> object:
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
        strict=strict,
    )
    response = wire.ask(request, version, DescribeClientQuotasResponse)
    entries = response.entries
    found: list[list[object]] = sorted(
        [
            [
                sorted((part.entity_type, part.entity_name) for part in entry.entity),
                {value.key: value.value for value in sorted(entry.values, key=lambda v: v.key)},
            ]
            for entry in entries or []
        ],
        key=str,
    )
    is_null = entries is None
    return [response.error_code, response.error_message, None if is_null else found]


def _pairs(mapping: dict[str, V] | list[tuple[str, V]]) -> list[tuple[str, V]]:
    return list(mapping.items()) if isinstance(mapping, dict) else list(mapping)


if __name__ == "__main__":
    with WireClient(sys.argv[1]) as wire:
        recorded = dict(answers(wire, is_visible_later=True))
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in recorded.items()]
    KAFKA_ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")

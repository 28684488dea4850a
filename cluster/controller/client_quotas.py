"""AlterClientQuotas: the changes to an entity happen all or not at all (KIP-546)."""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final

from odradek.cluster.controller.commands import (
    AlterClientQuotas,
    ClientQuotasReply,
    QuotaChange,
    QuotaEntityChanges,
    QuotaEntityResult,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.client_quotas import QuotaEntity, QuotaEntityType, QuotaKey
from odradek.cluster.metadata.records import ClientQuotaChanged, Record
from odradek.protocol.errors import ApiError, ErrorCode


class _Number(Enum):
    """The type of a quota's value: the largest, and its name. Null: fractions are allowed."""

    INT = 2**31 - 1, "an INT"
    LONG = 2**63 - 1, "a LONG"
    DOUBLE = None, ""


_KEYS_OF_CLIENTS: Final[Mapping[str, _Number]] = {
    QuotaKey.PRODUCER_BYTE_RATE: _Number.LONG,
    QuotaKey.CONSUMER_BYTE_RATE: _Number.LONG,
    QuotaKey.REQUEST_PERCENTAGE: _Number.DOUBLE,
    QuotaKey.CONTROLLER_MUTATION_RATE: _Number.DOUBLE,
}
_KEYS_OF_IPS: Final[Mapping[str, _Number]] = {QuotaKey.CONNECTION_CREATION_RATE: _Number.INT}
_FRACTION_MAX: Final = 1e-6
"""A number without more than this behind its point is whole, as in Kafka."""


def alter_client_quotas(state: ControllerState, command: AlterClientQuotas) -> ControllerResult:
    """Change the quotas of each entity. A value that does not change makes no record."""
    records: list[Record] = []
    results: list[QuotaEntityResult] = []
    times_named = Counter(entry.entity for entry in command.entries)
    unresolved = frozenset(command.unresolved_hosts)
    for entry in {entry.entity: entry for entry in command.entries}.values():
        code, message = ErrorCode.NONE, None
        try:
            keys = Counter(change.key for change in entry.changes)
            if times_named[entry.entity] > 1 or any(count > 1 for count in keys.values()):
                text = ", ".join(f"{kind}={name or 'null'}" for kind, name in entry.entity)
                raise _invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{text}}})")
            records.extend(_changes(state, entry, unresolved))
        except ApiError as error:
            code, message = error.code, error.message
        results.append(QuotaEntityResult(entry.entity, code, message))
    return ControllerResult(
        records=() if command.validate_only else tuple(records),
        reply=ClientQuotasReply(tuple(results)),
    )


def _changes(
    state: ControllerState, entry: QuotaEntityChanges, unresolved: frozenset[str]
) -> list[Record]:
    _check_components(entry.entity)
    keys = _keys_of(entry.entity, unresolved)
    before = state.image.client_quotas.of(entry.entity)
    records: list[Record] = []
    for change in entry.changes:
        if change.value is not None:
            _check_value(keys, change)
        if change.value != before.get(change.key):
            records.append(ClientQuotaChanged(entry.entity, change.key, change.value))
    return records


def _check_components(entity: QuotaEntity) -> None:
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in set(QuotaEntityType):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            raise _invalid(f"Empty {kind} not supported")


def _keys_of(entity: QuotaEntity, unresolved: frozenset[str]) -> Mapping[str, _Number]:
    """The keys that can be set for an entity, with their types."""
    names = dict(entity)
    if QuotaEntityType.IP not in names:
        return _KEYS_OF_CLIENTS
    if len(names) > 1:
        # Kafka's text.
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or"
            " ClientId"
        )
    host = names[QuotaEntityType.IP]
    if host in unresolved:
        raise _invalid(f"{host} is not a valid IP or resolvable host.")
    return _KEYS_OF_IPS


def _check_value(keys: Mapping[str, _Number], change: QuotaChange) -> None:
    key, value = change.key, change.value
    number = keys.get(key)
    if number is None:
        raise _invalid(f"Invalid configuration key {key}")
    # Not `value <= 0`: that is false for a value that is no number.
    if value is None or not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    maximum, name = number.value
    if maximum is None:
        return
    if value > maximum:
        raise _invalid(f"Proposed value for {key} is too large for {name}.")
    if value % 1.0 > _FRACTION_MAX:
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)

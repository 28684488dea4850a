"""Quotas: DescribeClientQuotas (48), AlterClientQuotas (49)."""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
    struct,
)
from odradek.protocol.types import Request


@struct
class ComponentData:
    """One condition: 0 an exact name, 1 the default entity, 2 any name given."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable_since=0)


@struct
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """List matching quotas. `strict` excludes entities with further components."""

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


@struct
class EntityData:
    """One component of an entity, such as a user; a null name is the default."""

    entity_type: str = string()
    entity_name: str | None = string(nullable_since=0)


@struct
class ValueData:
    """A quota and its value."""

    key: str = string()
    value: float = float64()


@struct
class DescribeClientQuotasEntryData:
    """An entity and its quotas."""

    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


@struct
class DescribeClientQuotasResponse(ErrorMessageResponse):
    """The quotas found; null with an error."""

    entries: list[DescribeClientQuotasEntryData] | None = array(
        DescribeClientQuotasEntryData, nullable_since=0
    )


@struct
class OpData:
    """A quota to set, or to remove."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class AlterClientQuotasRequestEntryData:
    """An entity and the changes to it."""

    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@struct
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Change quotas (KIP-546)."""

    entries: list[AlterClientQuotasRequestEntryData] = array(AlterClientQuotasRequestEntryData)
    validate_only: bool = boolean()


@struct
class AlterClientQuotasResponseEntryData:
    """The result for one entity."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    entity: list[EntityData] = array(EntityData)


@struct
class AlterClientQuotasResponse:
    """One result per entity."""

    throttle_time_ms: int = int32()
    entries: list[AlterClientQuotasResponseEntryData] = array(AlterClientQuotasResponseEntryData)

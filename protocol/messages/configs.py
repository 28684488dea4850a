"""Configuration of topics, brokers, groups and clients: DescribeConfigs (32), AlterConfigs (33),
IncrementalAlterConfigs (44), ListConfigResources (74).
"""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorCodeResponse
from odradek.protocol.schema import array, boolean, int8, int16, int32, string, struct
from odradek.protocol.types import Request


@struct
class DescribeConfigsResource:
    """A topic (2), broker (4), logger (8), client metrics (16) or group (32); null keys are all."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable_since=0)


@struct
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Describe configs; v1 can include synonyms, v3 documentation."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@struct
class DescribeConfigsSynonym:
    """A possible source of the value, in order of precedence."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


@struct
class DescribeConfigsResourceResult:
    """A key, its value (null if sensitive) and its source.

    v0 only tells whether it is the default, v1 the source and synonyms (KIP-226), v3 type and
    documentation (KIP-569).
    """

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    is_default: bool = boolean(until=0, ignorable=True)
    config_source: int = int8(default=-1, since=1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1, ignorable=True)
    config_type: int = int8(since=3, ignorable=True)
    documentation: str | None = string(nullable_since=0, since=3, ignorable=True)


@struct
class DescribeConfigsResult:
    """The configuration of one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@struct
class DescribeConfigsResponse:
    """One result per resource."""

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


@struct
class AlterableConfig:
    """A key and its value."""

    name: str = string()
    value: str | None = string(nullable_since=0)


@struct
class AlterConfigsResource:
    """A resource and all its configs: keys that are left out return to their defaults."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@struct
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """Replace whole configurations; deprecated for IncrementalAlterConfigs."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    """The result for one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


@struct
class AlterConfigsResponse:
    """One result per resource."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class IncrementalAlterableConfig:
    """A key and the operation: 0 set, 1 delete, 2 append to a list, 3 subtract from it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


@struct
class IncrementalAlterConfigsResource:
    """A resource and the changes to it."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@struct
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Change single keys (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = boolean()


@struct
class IncrementalAlterConfigsResponse:
    """One result per resource."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """List resources; v0 client metrics only, v1 the given types (KIP-1142)."""

    resource_types: list[int] = array(int8, since=1)


@struct
class ListedConfigResource:
    """A resource. v0 has no type: it is client metrics (16)."""

    resource_name: str = string()
    resource_type: int = int8(default=16, since=1, ignorable=True)


@struct
class ListConfigResourcesResponse(ErrorCodeResponse):
    """The resources."""

    config_resources: list[ListedConfigResource] = array(ListedConfigResource)


# -- DescribeConfigSources, a private API ----------------------------------------------------------


@struct
class DescribeConfigSourcesRequest(Request["DescribeConfigSourcesResponse"]):
    """Where the static configuration of the broker that is asked comes from (v0). Null keys: all
    that are set."""

    keys: list[str] | None = array(string, nullable_since=0, default=None)


@struct
class ConfigSourceValue:
    """A value and its origin, such as `environment variable ODRADEK_WORKERS`."""

    value: str = string()
    origin: str = string()


@struct
class ConfigSourcesOfKey:
    """All values of a key, the strongest first. Secret values are hidden."""

    name: str = string()
    values: list[ConfigSourceValue] = array(ConfigSourceValue)


@struct
class DescribeConfigSourcesResponse(ErrorCodeResponse):
    """`file_problem` says why the configuration file is refused, null if it is in effect;
    `restart_keys` have changed in it and need a restart. `listener_problems` keep clients from a
    listener, or soon will. `secrets` are the fingerprints of the cluster secrets that the node
    accepts, the one with which it listens first. `settings_problem` says why settings of the node
    that are set through the cluster are not in effect, null if they are."""

    keys: list[ConfigSourcesOfKey] = array(ConfigSourcesOfKey)
    file_problem: str | None = string(nullable_since=0)
    restart_keys: list[str] = array(string)
    listener_problems: list[str] = array(string)
    secrets: list[str] = array(string)
    settings_problem: str | None = string(nullable_since=0)

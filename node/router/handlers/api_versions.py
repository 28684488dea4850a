"""ApiVersions (18): versions 0 to 5.

v3 has the client's software name and version (KIP-511) and the features; v4 lists features whose
range begins at 0, which v3 clients reject (KAFKA-17011); with v5 a client names the cluster and
node that it expects (KIP-1242). It is the first request of a connection and must be cheap.
"""

import re
from collections.abc import Iterable

from odradek.cluster.metadata.features import SECURITY_VERSION, SUPPORTED_FEATURES
from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.context import RequestContext, Services
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


async def handle_api_versions(
    request: ApiVersionsRequest, context: RequestContext, services: Services
) -> ApiVersionsResponse:
    """The served versions. Needs no authorization: it precedes authentication."""
    version = context.api_version
    if version >= 3 and not (
        _SOFTWARE.match(request.client_software_name)
        and _SOFTWARE.match(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    is_for_other_node = (
        request.cluster_id is not None and request.cluster_id != services.cluster_id
    ) or request.node_id not in (-1, services.node_id)
    if version >= 5 and is_for_other_node:
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    if version >= 3:
        services.connected_clients.add(
            context.connection_id,
            ConnectedClient(
                client_id=context.client_id or "",
                software_name=request.client_software_name,
                software_version=request.client_software_version,
                host=context.client_host,
                port=context.client_port,
                since_ms=services.now_ms(),
            ),
        )
    image = services.image
    return ApiVersionsResponse(
        api_keys=_served(services.served_apis),
        supported_features=[
            SupportedFeatureKey(
                name=feature.name, min_version=feature.min_level, max_version=feature.max_level
            )
            for feature in SUPPORTED_FEATURES
            if feature.min_level > 0 or version >= 4
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if name != SECURITY_VERSION
        ],
    )


def unsupported_api_versions() -> ApiVersionsResponse:
    """The response to an unknown version of ApiVersions. It is written in version 0 (KIP-511)."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=_served((ApiKey.API_VERSIONS,)),
    )


def _served(keys: Iterable[int]) -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=key, min_version=APIS[key].min_version, max_version=APIS[key].max_version
        )
        for key in sorted(keys)
        if not APIS[key].is_private
    ]

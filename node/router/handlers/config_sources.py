"""DescribeConfigSources (20008, version 0, a private API): where a broker's own configuration comes
from, and what is wrong with it.
"""

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.bus.curve import cluster_keys
from odradek.node.router.context import RequestContext, Services
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    ConfigSourcesOfKey,
    ConfigSourceValue,
    DescribeConfigSourcesRequest,
    DescribeConfigSourcesResponse,
)

KEYS_EXPLAINED_MAX = 10_000
"""Keys in one request for their sources; there are fewer than a thousand."""


async def handle_describe_config_sources(
    request: DescribeConfigSourcesRequest, context: RequestContext, services: Services
) -> DescribeConfigSourcesResponse:
    """The sources of keys, all or those named. Needs DESCRIBE_CONFIGS on the cluster."""
    services.authorizer.authorize(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    config, health = services.node_control.config, services.listener_health
    if request.keys is not None and len(request.keys) > KEYS_EXPLAINED_MAX:
        return DescribeConfigSourcesResponse(error_code=ErrorCode.INVALID_REQUEST)
    wanted = config.sources if request.keys is None else dict.fromkeys(request.keys)
    return DescribeConfigSourcesResponse(
        keys=[
            ConfigSourcesOfKey(
                name=key,
                values=[
                    ConfigSourceValue(value=value, origin=origin)
                    for value, origin in config.sources[key]
                ],
            )
            for key in wanted
            if key in config.sources
        ],
        file_problem=config.file_problem or None,
        settings_problem=config.settings_problem or None,
        restart_keys=list(config.restart_keys),
        listener_problems=[] if health is None else health.texts,
        secrets=[keys.fingerprint for keys in cluster_keys(config.cluster_secrets)],
    )

"""InitProducerId (22): versions 0 to 5, without a transactional id.

An idempotent producer without a transactional id gets a fresh id at epoch 0 from any broker;
what it says of a former id (v3, KIP-360) changes nothing, as nobody else can know that id.
Transactional ids need a coordinator, which this broker does not have yet.
"""

from node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from node.router.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse


async def handle_init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, services: Services
) -> InitProducerIdResponse:
    """A producer id. Needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    if request.transactional_id is not None:
        return _without_coordinator(request.transactional_id, context, services)
    if not _may_write(context, services):
        return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return InitProducerIdResponse(producer_id=await services.producer_ids.take(), producer_epoch=0)


def _without_coordinator(
    transactional_id: str, context: RequestContext, services: Services
) -> InitProducerIdResponse:
    if not transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif not services.authorizer.check(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        # Not a code that clients retry: they would wait for a coordinator that never comes.
        code = ErrorCode.UNSUPPORTED_VERSION
    return InitProducerIdResponse(error_code=code)


def _may_write(context: RequestContext, services: Services) -> bool:
    check = services.authorizer.check
    return check(context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME) or any(
        check(context, Operation.WRITE, ResourceType.TOPIC, name)
        for name in services.image.topics_by_name
    )

"""SaslHandshake (17, versions 0 and 1) and SaslAuthenticate (36, 0 to 2) out of place.

`sasl_authentication` answers them on listeners with SASL. What arrives here comes in by a listener
without SASL, or from a client that has authenticated and need not do it again.
"""

from odradek.node.router.context import RequestContext, Services
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def handle_sasl_handshake(
    request: SaslHandshakeRequest, context: RequestContext, services: Services
) -> SaslHandshakeResponse:
    """ILLEGAL_SASL_STATE. Needs no authorization."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def handle_sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext, services: Services
) -> SaslAuthenticateResponse:
    """ILLEGAL_SASL_STATE. Needs no authorization."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )

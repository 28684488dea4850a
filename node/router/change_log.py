"""One line of the log for each administrative change that a client asks for: what, who, from where,
and what came of it. The audit log, if there is one, has the details; this is for who reads a log to
find out why something is different since yesterday. A request of which all is denied, or which is
only validated, is no change. Called by dispatch.py for the APIs of LOGGED.
"""

from collections.abc import Awaitable, Iterator, Set
from itertools import islice
from typing import Any, Final

from odradek.node.router.audit_log import AUDITED, DENIALS, NAMED, outcomes
from odradek.node.router.context import RequestContext
from odradek.node.router.response_errors import error_name
from odradek.node.router.topic_log import caller_fields
from odradek.node.structured_log import get_logger
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.schema import fields_of, is_struct

log = get_logger(__name__)

LOGGED: Final = AUDITED - {
    # Brokers' own requests; and those whose handlers log what has become of each entity.
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.CREATE_DELEGATION_TOKEN,
}
WORDS_MAX: Final = 12
"""Names of a request in its line."""
WORD_LENGTH_MAX: Final = 100


async def logged(response: Awaitable[Any], request: object, context: RequestContext) -> Any:  # noqa: ANN401 - the API's response class
    """The response to a request, whose change is logged."""
    try:
        answer = await response
    except ApiError as error:
        if error.code not in DENIALS:
            _log({error.code}, request, context)
        raise
    codes = outcomes(answer)
    if DENIALS.isdisjoint(codes) or ErrorCode.NONE in codes:
        _log(codes - {ErrorCode.NONE}, request, context)
    return answer


def _log(codes: Set[int], request: object, context: RequestContext) -> None:
    if getattr(request, "validate_only", False):
        return
    failures = ", ".join(sorted(error_name(code) for code in codes))
    words = list(islice(_words(request), WORDS_MAX + 1))
    more = ", ..." if len(words) > WORDS_MAX else ""
    log.info(
        "an administrative request",
        api=APIS[context.api_key].name,
        **caller_fields(context),
        errors=failures or None,
        names=(", ".join(words[:WORDS_MAX]) + more) or None,
    )


def _words(value: object) -> Iterator[str]:
    """What a request names, one by one: a request may have thousands of names. No values; nothing
    of a large request, which is still encoded."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _words(each)
    elif isinstance(value, str):
        yield value[:WORD_LENGTH_MAX]
    elif isinstance(value, int):
        yield str(value)
    elif value is not None and is_struct(type(value)):
        for field in fields_of(type(value)):
            if field.name in NAMED:
                yield from _words(getattr(value, field.name))

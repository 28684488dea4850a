"""The table from API key to handler, and the path of a request through it.

Decode, build the context, run the handler, encode, complete the slot. Large requests are decoded,
and long responses encoded, in slices of the loop, so that others do not wait for them. No other
module of the router handles encoded messages. An `ApiError` becomes the error code of the response.
Malformed bytes close the connection; any other exception is logged and closes it too.
"""

import ctypes
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from odradek.node.bus.reply import (
    MeasuredDrive,
    StepObserver,
    TraceScope,
    WorkMeter,
    drive,
    start_coroutine,
)
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.router.audit_log import AuditLog
from odradek.node.router.authorizer import CLUSTER_PRINCIPAL
from odradek.node.router.change_log import LOGGED, logged
from odradek.node.router.client_quotas import has_throttle_time
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import run_in_slices
from odradek.node.router.fetch_routes import FetchRouting
from odradek.node.router.handlers import (
    acls,
    api_versions,
    clients,
    cluster,
    config_sources,
    configs,
    consumer_groups,
    explanations,
    fetch,
    group_offsets,
    groups,
    lag,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    quotas,
    rewinds,
    sasl,
    scram,
    share_acknowledge,
    share_fetch,
    share_group_offsets,
    share_groups,
    share_states,
    streams,
    telemetry,
    tokens,
    topics,
    traces,
    transactional_offsets,
    transactions,
)
from odradek.node.router.idle_fetches import IdleFetches
from odradek.node.router.produce_routes import ProduceRouting
from odradek.node.router.repeated_requests import REPEATED, RepeatedRequests
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.router.response_errors import ResponseErrors
from odradek.node.router.topic_log import caller_fields
from odradek.node.router.tracing.trace_filter import topics_of
from odradek.node.router.tracing.tracer import TracedClient
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import NOT_MEASURED, RequestTiming
from odradek.protocol.apis import APIS, Api, ApiKey
from odradek.protocol.codec import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_request_in_slices,
    encode_response,
    encode_response_header,
    encode_response_in_slices,
)
from odradek.protocol.errors import ApiError, ProtocolError
from odradek.protocol.messages.share import ShareFetchResponse
from odradek.protocol.schema import fields_of
from odradek.protocol.sliced_release import release_in_slices

log = get_logger(__name__)

DECODED_BYTES_MAX = 8 << 20
"""The largest request except Produce. A decoded request can take thirty times its size in memory;
Produce's records are not decoded. A Metadata request for 100,000 topics is a third of this."""

SLICED_BYTES_MIN = 32 << 10
"""Requests above this size, except Produce, are decoded in slices: it takes more than a
millisecond."""

Handler = Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Any]]
"""From request class to response class. The table holds handlers of all classes, hence Any."""

_Finish = Callable[[Any, BaseException | None], None]
"""Called with the response, or with an error."""

HANDLERS: Mapping[int, Handler] = {
    ApiKey.PRODUCE: produce.handle_produce,
    ApiKey.FETCH: fetch.handle_fetch,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.OFFSET_COMMIT: group_offsets.handle_offset_commit,
    ApiKey.OFFSET_FETCH: group_offsets.handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.handle_find_coordinator,
    ApiKey.JOIN_GROUP: groups.handle_join_group,
    ApiKey.HEARTBEAT: groups.handle_heartbeat,
    ApiKey.LEAVE_GROUP: groups.handle_leave_group,
    ApiKey.SYNC_GROUP: groups.handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: groups.handle_describe_groups,
    ApiKey.LIST_GROUPS: groups.handle_list_groups,
    ApiKey.SASL_HANDSHAKE: sasl.handle_sasl_handshake,
    ApiKey.API_VERSIONS: api_versions.handle_api_versions,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.DELETE_RECORDS: topics.handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.handle_init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.handle_add_offsets_to_txn,
    ApiKey.END_TXN: transactions.handle_end_txn,
    ApiKey.WRITE_TXN_MARKERS: transactions.handle_write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: transactional_offsets.handle_txn_offset_commit,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_ACLS: acls.handle_describe_acls,
    ApiKey.CREATE_ACLS: acls.handle_create_acls,
    ApiKey.DELETE_ACLS: acls.handle_delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: configs.handle_alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.handle_describe_log_dirs,
    ApiKey.SASL_AUTHENTICATE: sasl.handle_sasl_authenticate,
    ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    ApiKey.CREATE_DELEGATION_TOKEN: tokens.handle_create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: tokens.handle_renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: tokens.handle_expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: tokens.handle_describe_delegation_token,
    ApiKey.DELETE_GROUPS: groups.handle_delete_groups,
    ApiKey.ELECT_LEADERS: cluster.handle_elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.handle_incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.handle_list_partition_reassignments,
    ApiKey.OFFSET_DELETE: group_offsets.handle_offset_delete,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: scram.handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: scram.handle_alter_user_scram_credentials,
    ApiKey.DESCRIBE_QUORUM: cluster.handle_describe_quorum,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas.handle_alter_client_quotas,
    ApiKey.UPDATE_FEATURES: cluster.handle_update_features,
    ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: producers.handle_describe_producers,
    ApiKey.UNREGISTER_BROKER: cluster.handle_unregister_broker,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.handle_list_transactions,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: telemetry.handle_get_telemetry_subscriptions,
    ApiKey.PUSH_TELEMETRY: telemetry.handle_push_telemetry,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.handle_consumer_group_describe,
    ApiKey.SHARE_FETCH: share_fetch.handle_share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge.handle_share_acknowledge,
    ApiKey.STREAMS_GROUP_HEARTBEAT: streams.handle_streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: streams.handle_streams_group_describe,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (
        streams.handle_streams_group_topology_description_update
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: share_groups.handle_share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_groups.handle_share_group_describe,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: share_group_offsets.handle_describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_group_offsets.handle_alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_group_offsets.handle_delete_share_group_offsets,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.handle_describe_topic_partitions,
    ApiKey.ADD_RAFT_VOTER: cluster.handle_add_raft_voter,
    ApiKey.REMOVE_RAFT_VOTER: cluster.handle_remove_raft_voter,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: share_states.handle_share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE: share_states.handle_share_group_state,
    ApiKey.WRITE_SHARE_GROUP_STATE: share_states.handle_share_group_state,
    ApiKey.DELETE_SHARE_GROUP_STATE: share_states.handle_share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: share_states.handle_share_group_state,
    ApiKey.EXPLAIN_GROUP: explanations.handle_explain_group,
    ApiKey.EXPLAIN_TOPIC: explanations.handle_explain_topic,
    ApiKey.DESCRIBE_LAG: lag.handle_describe_lag,
    ApiKey.DESCRIBE_CONFIG_SOURCES: config_sources.handle_describe_config_sources,
    ApiKey.REWIND_GROUP: rewinds.handle_rewind_group,
    ApiKey.DESCRIBE_REWINDS: rewinds.handle_describe_rewinds,
    ApiKey.ALTER_SNAPSHOT: rewinds.handle_alter_snapshot,
    ApiKey.RELOAD_SHARE_STATE: rewinds.handle_reload_share_state,
    ApiKey.DESCRIBE_CLIENTS: clients.handle_describe_clients,
    ApiKey.TRACE_REQUESTS: traces.handle_trace_requests,
}


class Dispatcher:
    """Requests of one router, from frame to response. The frames are in `arena`."""

    def __init__(
        self, services: Services, arena: memoryview, audit_log: AuditLog | None = None
    ) -> None:
        self._services = services
        self._tracer = services.tracer
        self._audit_log = audit_log
        self._arena_address = _address_of(arena)
        self.request_counts: dict[tuple[int, int], int] = {}
        """By API and version."""
        self.errors = ResponseErrors()
        self._repeated = RepeatedRequests(services, self.count, self._finish, self._begin)

    @property
    def produce_routing(self) -> ProduceRouting:
        """Of all connections."""
        return self._repeated.routing

    @property
    def fetch_routing(self) -> FetchRouting:
        """Of all connections."""
        return self._repeated.fetch_routing

    @property
    def idle_fetches(self) -> IdleFetches:
        """Of all connections."""
        return self._repeated.idle_fetches

    def on_request(self, slot: Slot, frame: memoryview, arena_offset: int) -> None:
        """Start one request. Its slot is completed now or later."""
        client = slot.connection
        if client.gate is not None and client.gate.takes(slot, frame):
            return
        if (
            client.remembered is not None
            and not self._tracer.is_active
            and self._repeated.begin(slot, frame, arena_offset)
        ):
            return
        self._begin(slot, frame, arena_offset)

    def _begin(self, slot: Slot, frame: memoryview, arena_offset: int) -> None:
        """Decode a request, and start its handler."""
        client = slot.connection
        is_tracing, trace = self._tracer.is_active, None
        is_limited = self._services.client_quotas.is_active
        started_ns = perf_counter_ns() if is_limited else 0
        try:
            header = decode_request_header(frame)
            api = APIS.get(header.api_key)
            handler = HANDLERS.get(header.api_key)
            if (
                api is None
                or handler is None
                or not api.min_version <= header.api_version <= api.max_version
            ):
                self._reject(slot, header, api)
                return
            if not header.correlation_id & SAMPLE_MASK_OF_API[header.api_key] and not slot.timing:
                slot.timing = RequestTiming(header.api_key, client.received_ns, perf_counter_ns())
            if is_tracing:
                trace = self._begin_trace(slot, header, len(frame))
            if len(frame) > SLICED_BYTES_MIN and header.api_key != ApiKey.PRODUCE:
                if len(frame) > DECODED_BYTES_MAX:
                    raise ProtocolError(f"{api.name} request of {len(frame)} bytes is too large")
                request: Any = bytes(frame)
                handler = partial(_handle_large, slot, header)
                client.hold_back()
            else:
                request = decode_request(
                    header.api_key, header.api_version, frame, header.body_offset
                )
        except ProtocolError as error:
            _refuse(client, error)
            _close(slot)
            return
        if trace is not None:
            trace.add("decode", trace.step_ns, perf_counter_ns())
            if not isinstance(request, bytes):
                trace.add_topics(topics_of(request))
        self.count((header.api_key, header.api_version))
        context = RequestContext(
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=client.client_host,
            client_port=client.client_port,
            local_host=client.local_host,
            local_port=client.local_port,
            listener_name=client.listener.name,
            principal=client.peer_principal,
            connection_id=client.id,
            frame=frame,
            arena_offset=arena_offset,
            retain=slot.retain,
            offset_of=self._offset_of,
            close=client.close,
        )
        run = handler(request, context, self._services)
        if header.api_key in LOGGED and client.peer_principal != CLUSTER_PRINCIPAL:
            run = logged(run, request, context)
        if self._audit_log is not None:
            run = self._audit_log.recorded(run, request, context)
        finish: _Finish = partial(self._finish, slot, api, context)
        if not started_ns and not is_tracing:
            if header.api_key in REPEATED and self._audit_log is None:
                at = header.body_offset
                finish = self._repeated.remembering(client, request, context, at, finish)
            drive(run, finish)
            return
        meter = None
        if started_ns:
            if header.api_key == ApiKey.PRODUCE:
                # What follows on the connection is not read before this request is answered, and
                # the client has waited after that.
                client.throttle(self._services.client_quotas.count_produce(context, len(frame)))
            meter = WorkMeter(perf_counter_ns() - started_ns)
            finish = partial(self._finish_limited, slot, api, context, meter)
        if trace is not None:
            finish = partial(self._finish_traced, trace, api, finish)
        # Without a trace, too: a request that is traced may resume this one.
        observer: StepObserver = TraceScope(trace, meter) if is_tracing or meter is None else meter
        MeasuredDrive(run, finish, observer)
        if trace is not None and not trace.answered_ns:
            trace.has_waited = True
            trace.add("handle", trace.step_ns, perf_counter_ns())

    def _begin_trace(self, slot: Slot, header: RequestHeader, size: int) -> RequestTrace | None:
        """The trace of a request, if anybody wants it. It ends with the slot's timing."""
        client, now_ns = slot.connection, perf_counter_ns()
        trace = self._tracer.begin(
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client=TracedClient(
                client.client_host,
                client.client_port,
                client.id,
                client.listener.name,
                client.peer_principal,
            ),
            received_ns=client.received_ns,
        )
        if trace is not None:
            trace.step_ns = now_ns
            trace.request_bytes = size
            trace.add("queue", client.received_ns, now_ns)
            if slot.timing is None:
                slot.timing = RequestTiming(NOT_MEASURED, client.received_ns, now_ns)
            slot.timing.trace = trace
        return trace

    def _finish_traced(
        self,
        trace: RequestTrace,
        api: Api,
        finish: _Finish,
        response: Any,  # noqa: ANN401 - the API's response class
        error: BaseException | None,
    ) -> None:
        trace.answered_ns = perf_counter_ns()
        trace.add("answer" if trace.has_waited else "handle", trace.step_ns, trace.answered_ns)
        if isinstance(error, ApiError):
            trace.error_codes = frozenset({int(error.code)})
        elif response is not None:
            trace.error_codes = self.errors.codes(api.key, response)
        finish(response, error)
        trace.throttle_time_ms = getattr(response, "throttle_time_ms", 0)

    def count(self, key_and_version: tuple[int, int], requests: int = 1) -> None:
        """Count requests that were not decoded here."""
        counts = self.request_counts
        counts[key_and_version] = counts.get(key_and_version, 0) + requests

    def _offset_of(self, view: memoryview) -> int:
        return _address_of(view) - self._arena_address

    def _finish(
        self,
        slot: Slot,
        api: Api,
        context: RequestContext,
        response: Any,  # noqa: ANN401 - the API's response class
        error: BaseException | None,
    ) -> None:
        if error is not None:
            response = self._response_to_error(api, context, error)
            if response is None:
                _close(slot)
                return
        if response is None:
            slot.complete(None)
            return
        version = context.api_version
        if context.is_long:
            self.errors.count_whole(api.key, response)
            slices = _encode_and_release(api.key, version, [response])
            drive(run_in_slices(slices), partial(self._finish_long, slot, api, context))
            return
        if context.may_have_errors:
            self.errors.count(api.key, response)
        try:
            body = encode_response(api.key, version, response)
        except ProtocolError as failure:
            # Not raised: the caller has other replies to deliver.
            _log_unencodable(api, version, failure)
            _close(slot)
            return
        header = encode_response_header(api.key, version, context.correlation_id)
        slot.complete([header, *body], context.holds or None)

    def _finish_limited(
        self,
        slot: Slot,
        api: Api,
        context: RequestContext,
        meter: WorkMeter,
        response: Any,  # noqa: ANN401 - the API's response class
        error: BaseException | None,
    ) -> None:
        """Count the request for the quotas, answer it, and then throttle the client if it must
        wait."""
        if error is not None:
            response = self._response_to_error(api, context, error)
            if response is None:
                _close(slot)
                return
        client_quotas = self._services.client_quotas
        work_ns = meter.spent_ns()
        throttle_ms = client_quotas.finish(
            context,
            shared_bytes=_record_bytes(response) if api.key == ApiKey.SHARE_FETCH else 0,
            work_ns=work_ns + context.worker_ns,
            is_answered=response is not None,
        )
        if throttle_ms and response is not None and has_throttle_time(api.key, context.api_version):
            response.throttle_time_ms = throttle_ms
        self._finish(slot, api, context, response, None)
        slot.connection.throttle(throttle_ms)
        if response is not None:
            client_quotas.count_time(context, meter.spent_ns() - work_ns)

    def _finish_long(
        self,
        slot: Slot,
        api: Api,
        context: RequestContext,
        body: list[bytes | memoryview] | None,
        error: BaseException | None,
    ) -> None:
        version = context.api_version
        if body is None:
            _log_unencodable(api, version, error)
            _close(slot)
            return
        header = encode_response_header(api.key, version, context.correlation_id)
        slot.complete([header, *body], context.holds or None)

    def _response_to_error(
        self,
        api: Api,
        context: RequestContext,
        error: BaseException,
    ) -> Any:  # noqa: ANN401 - the API's response class
        if not isinstance(error, ApiError):
            log.error(
                "a request failed",
                api=api.name,
                api_version=context.api_version,
                **caller_fields(context),
                exc_info=error,
            )
            return None
        response = error_response(api, context.api_version, error)
        if response is None:
            log.warning(
                "closing the connection: this version of the response has no field for the error",
                api=api.name,
                api_version=context.api_version,
                **caller_fields(context),
                reason=str(error),
            )
        return response

    def _reject(self, slot: Slot, header: RequestHeader, api: Api | None) -> None:
        """An API or version that is not served. Only ApiVersions has a response for that."""
        client = slot.connection
        if api is not None and api.key == ApiKey.API_VERSIONS:
            # KIP-511: a response in version 0 with the served versions of ApiVersions.
            response = api_versions.unsupported_api_versions()
            slot.complete(
                [
                    encode_response_header(api.key, 0, header.correlation_id),
                    *encode_response(api.key, 0, response),
                ]
            )
            return
        client.log_refusal(
            f"it asks for version {header.api_version} of API key {header.api_key}, which is not"
            " supported; docs/compatibility.md has what is"
        )
        _close(slot)


async def _handle_large(
    slot: Slot, header: RequestHeader, frame: bytes, context: RequestContext, services: Services
) -> Any | None:  # noqa: ANN401 - the API's response class
    """Decode in slices, then run the handler. Later requests of the connection are held back until
    then: they must not reach their handlers before this one."""
    client = slot.connection
    try:
        request = await run_in_slices(
            decode_request_in_slices(header.api_key, header.api_version, frame, header.body_offset)
        )
    except ProtocolError as error:
        _refuse(client, error)
        client.close()
        return None
    if client.is_closed:
        return None
    if RequestTrace.current is not None:
        RequestTrace.current.add_topics(topics_of(request))
    context.is_long = True
    held = [request]
    response = start_coroutine(HANDLERS[header.api_key](request, context, services))
    del request
    client.resume()
    try:
        return await response
    finally:
        await run_in_slices(release_in_slices(held))


def _record_bytes(response: ShareFetchResponse | None) -> int:
    """The size of the records that a response has."""
    if response is None:
        return 0
    count = 0
    for topic in response.responses:
        for partition in topic.partitions:
            records = partition.records or b""
            if isinstance(records, bytes | memoryview):
                count += len(records)
            else:
                count += sum(map(len, records))
    return count


def _encode_and_release(
    api_key: int, version: int, held: list[object]
) -> Generator[None, None, list[bytes | memoryview]]:
    """The body of the response that this list holds, and nobody else."""
    body = yield from encode_response_in_slices(api_key, version, held[0])
    yield from release_in_slices(held)
    return body


def _refuse(client: Connection, error: ProtocolError) -> None:
    client.log_refusal(str(error))


def _log_unencodable(api: Api, version: int, error: BaseException | None) -> None:
    log.error("a response cannot be encoded", api=api.name, api_version=version, exc_info=error)


def _close(slot: Slot) -> None:
    """Close the connection without a response."""
    slot.connection.close()
    slot.complete(None)


def error_response(api: Api, version: int, error: ApiError) -> Any | None:  # noqa: ANN401 - the API's response class
    """A response with only that error; None if this version has no top-level error code."""
    fields = {field.name for field in fields_of(api.response) if field.is_in(version)}
    if "error_code" not in fields:
        return None
    response = api.response(error_code=error.code)
    if "error_message" in fields:
        response.error_message = error.message
    return response


def _address_of(view: memoryview) -> int:
    # A memoryview does not know its offset in the arena. Its address does.
    return ctypes.addressof(ctypes.c_char.from_buffer(view))

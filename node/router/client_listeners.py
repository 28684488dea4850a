"""The listeners of this router, which may be added, removed and moved while it runs.

A change of the configuration is tried before it is sent to the controller: the new sockets are
bound and the new key stores read, and these are used when the change comes back, so that a listener
accepts clients before the change is answered. A change that comes from elsewhere, from the
configuration file or through another broker, is carried out when it is known; what cannot be bound
then is tried again every `RETRY_S`. Listeners that stay are not touched. Connections of one that is
removed close when their responses are sent.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.listener_addresses import LISTENER_KEYS
from odradek.node.bus.reply import Reply, drive
from odradek.node.config import WORKER_LISTENER_PREFIX, ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.listener_configs import effective_config, effective_listeners, listener_items
from odradek.node.listener_security import warn_of_open_listeners
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.sasl_config import sasl_errors_of
from odradek.node.structured_log import get_logger
from odradek.node.wire.acceptor import Acceptor, bind
from odradek.node.wire.connection import ConnectionServer
from odradek.node.wire.key_stores import KeyStoreError
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.proxy_protocol import Network
from odradek.protocol.errors import ApiError, ErrorCode

log = get_logger(__name__)

RETRY_S: Final = 5.0
"""Between two attempts to bind a listener."""
REGISTRATION_S_MAX: Final = 5.0
"""How long an answer waits for the registration: without a quorum it does not come."""

_Place = tuple[str, int]
"""Host and port."""


class ClientListeners:
    """See the module's docstring. `on_changed` is called when others are open than before."""

    def __init__(
        self,
        config: NodeConfig,
        metadata: MetadataCache,
        socket_server: ConnectionServer,
        tls: TlsListeners,
        *,
        proxies: Callable[[str], tuple[Network, ...] | None],
        on_changed: Callable[[], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._socket_server = socket_server
        self._loop = socket_server.loop
        self._tls = tls
        self._proxies = proxies
        self._on_changed = on_changed
        self._open: dict[str, tuple[ListenerConfig, Acceptor]] = {}
        self._bound: dict[_Place, socket.socket] = {}
        """For a change that is on its way."""
        self._wanted: tuple[ListenerConfig, ...] = ()
        self._is_open = self._is_applying = self._has_started = False
        self._retry: asyncio.TimerHandle | None = None
        self._waiting: list[Reply[None]] = []
        self.problems: dict[str, str] = {}
        """Why listeners of the configuration are not open."""

    @property
    def acceptors(self) -> list[Acceptor]:
        """Of the open listeners."""
        return [acceptor for _, acceptor in self._open.values()]

    @property
    def names(self) -> list[str]:
        """Of the listeners of the configuration, open or not."""
        return [each.name for each in self._wanted]

    def ports(self) -> dict[str, int]:
        """The bound ports of those listeners that are as in the node's own configuration."""
        return {
            each.name: self._open[each.name][1].port
            for each in self._config.listeners
            if each.name in self._open and _place(self._open[each.name][0]) == _place(each)
        }

    def bootstrap(self) -> str:
        """The address of the first open listener, as a client of this machine uses it."""
        acceptor = next(iter(self.acceptors), None)
        if acceptor is None:
            return ""
        host = acceptor.host if acceptor.host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        return f"[{host}]:{acceptor.port}" if ":" in host else f"{host}:{acceptor.port}"

    async def start(self) -> None:
        """Open the listeners. Raises OSError if one of the node's own configuration cannot be
        opened; one that was added later is tried again."""
        self._is_open = True
        self._wanted = self._effective() or self._config.listeners
        await self._apply()
        self._has_started = True
        own = {each.name for each in self._config.listeners if each in self._wanted}
        for name, problem in self.problems.items():
            if name in own or not self._open:
                raise OSError(problem)
        listeners = self._with_bound_ports(self._config.listeners)
        self._config = msgspec.structs.replace(self._config, listeners=listeners)

    def stop(self) -> None:
        """Accept no more clients. Existing connections stay."""
        self._is_open = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.discard()
        for acceptor in self.acceptors:
            acceptor.stop()

    # -- changes -----------------------------------------------------------------------------------

    def items(self, key: str) -> list[str]:
        """The items of `listeners` or `advertised.listeners` as they hold now. The controller knows
        only what was changed while the broker runs."""
        return listener_items(key, self._wanted)

    async def check(self, changes: Mapping[str, str | None], *, keeps_others: bool) -> None:
        """ApiError unless the listeners can be those of this broker's configs so changed (None:
        removed). With `keeps_others` those that are not named stay as they are. What was bound
        waits for `follow`; `discard` it when the change did not come."""
        own = dict(self._own_configs()) if keeps_others else {}
        for key, value in changes.items():
            own.pop(key, None)
            if value is not None:
                own[key] = value
        try:
            wanted = self._with_bound_ports(effective_listeners(self._config, own))
            if wanted == self._wanted:
                return
            self._check_protocols(wanted)
            await self._prepare(wanted, changes, keeps_others=keeps_others)
        except ConfigurationError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        except KeyStoreError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        except OSError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error.strerror or error)) from error

    def _check_protocols(self, wanted: tuple[ListenerConfig, ...]) -> None:
        for each in wanted:
            if each.name in self._open:
                before = self._open[each.name][0].security_protocol
                if each.security_protocol != before:
                    # Kafka's text.
                    raise ConfigurationError(
                        f"Security protocol cannot be updated for existing listener {each.name}"
                    )

    async def _prepare(
        self,
        wanted: tuple[ListenerConfig, ...],
        changes: Mapping[str, str | None],
        *,
        keeps_others: bool,
    ) -> None:
        """Bind and read what the listeners need that are not open yet."""
        layers = self._metadata.broker_layers_after(changes, keeps_others=keeps_others)
        held = {_place(config) for config, _ in self._open.values()}
        for each in wanted:
            place = _place(each)
            is_new = each.name not in self._open
            if place not in held and place not in self._bound:
                self._bound[place] = await bind(self._loop, each.name, *place)
            if is_new:
                faults = list(sasl_errors_of(each, layers))
                if faults:
                    raise ConfigurationError(*faults)
                if each.security_protocol in ("SSL", "SASL_SSL"):
                    await self._tls.check_new(each.name, changes, keeps_others=keeps_others)

    def discard(self) -> None:
        """Close what was bound for a change that did not come."""
        for listening in self._bound.values():
            listening.close()
        self._bound.clear()

    def follow(self, config: NodeConfig | None = None) -> None:
        """The configs of the broker have changed, or with `config` the node's own configuration."""
        if config is not None:
            listeners = self._with_bound_ports(config.listeners)
            self._config = msgspec.structs.replace(config, listeners=listeners)
        if not self._is_open:
            return
        wanted = self._effective()
        if wanted is not None and (wanted != self._wanted or self.problems):
            self._wanted = wanted
            self._begin()

    def _begin(self) -> None:
        if self._is_applying:
            return  # what runs finds the newer one

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                log.error("the listeners cannot be changed", exc_info=error)

        drive(self._apply(), done)

    def _try_again(self) -> None:
        self._retry = None
        if self._is_open:
            self._begin()

    async def _apply(self) -> None:
        """Have the listeners that are wanted."""
        self._is_applying = True
        try:
            while True:
                wanted = self._wanted
                await self._change_to(wanted)
                if wanted is self._wanted:
                    self._wanted = self._with_bound_ports(wanted)
                    break
        finally:
            self._is_applying = False
        if self.problems and self._retry is None and self._is_open:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)
        self._on_changed()

    async def _change_to(self, wanted: tuple[ListenerConfig, ...]) -> None:
        by_name = {each.name: each for each in wanted}
        free, self._bound = self._bound, {}
        for name, (before, acceptor) in list(self._open.items()):
            after = by_name.get(name)
            if after is not None and after.security_protocol == before.security_protocol:
                if _place(after) == _place(before):
                    self._open[name] = (after, acceptor)
                    continue
            else:
                self._close_connections(name)
                self._tls.forget(name)
            log.info(
                "a listener no longer listens", listener=name, host=before.host, port=acceptor.port
            )
            del self._open[name]
            listening = acceptor.release()
            if listening is not None:
                free[_place(before)] = listening
        problems = {}
        added = [each for each in wanted if self._is_added(each)]
        warn_of_open_listeners(added, self._metadata.broker_layers())
        for each in wanted:
            if each.name not in self._open:
                try:
                    await self._open_one(each, free)
                except OSError as error:
                    problems[each.name] = str(error.strerror or error)
                    if self.problems.get(each.name) != problems[each.name]:
                        log.error(
                            "a listener is not open", listener=each.name, reason=problems[each.name]
                        )
        self.problems = problems
        for listening in free.values():
            listening.close()
        names = [each.name for each in wanted if each.name in self._open]
        self._open = {name: self._open[name] for name in names}

    def _is_added(self, config: ListenerConfig) -> bool:
        """Whether the listener is new since the supervisor has looked at those with which the node
        was started, and has not been looked at here."""
        if config.name in self._open or config.name in self.problems:
            return False
        return self._has_started or config not in self._config.listeners

    async def _open_one(self, config: ListenerConfig, free: dict[_Place, socket.socket]) -> None:
        listener = ClientListener(name=config.name, security_protocol=config.security_protocol)
        tls = self._tls.get(config.name) or await self._tls.open(listener)
        place = _place(config)
        listening = free.pop(place, None)
        if listening is None:
            listening = await bind(self._loop, config.name, *place)
        acceptor = Acceptor(
            self._socket_server,
            listener,
            host=config.host,
            port=config.port,
            tls=tls,
            proxies=partial(self._proxies, config.name),
        )
        acceptor.accept_from(listening)
        bound = msgspec.structs.replace(config, port=acceptor.port)
        self._open[config.name] = (bound, acceptor)
        log.info(
            "a listener listens",
            listener=config.name,
            security_protocol=config.security_protocol,
            host=config.host,
            port=acceptor.port,
        )

    def _close_connections(self, name: str) -> None:
        for connection in list(self._socket_server.connections.values()):
            if connection.listener.name == name:
                connection.close()

    # -- registration ------------------------------------------------------------------------------

    async def wait_until_registered(self) -> None:
        """Until other brokers and clients learn of these listeners, or for REGISTRATION_S_MAX."""
        if not self._is_registered():
            reply: Reply[None] = Reply()
            self._waiting.append(reply)
            self._loop.call_later(REGISTRATION_S_MAX, self._stop_waiting, reply)
            await reply

    def on_image(self) -> None:
        """The metadata have changed."""
        if self._waiting and self._is_registered():
            for reply in list(self._waiting):
                self._stop_waiting(reply)

    def _stop_waiting(self, reply: "Reply[None]") -> None:
        if reply in self._waiting:
            self._waiting.remove(reply)
            reply.resolve(None)

    def _is_registered(self) -> bool:
        broker = self._metadata.image.brokers.get(self._config.node_id)
        if broker is None:
            return True
        known = {
            each.name: each
            for each in broker.listeners
            if not each.name.startswith(WORKER_LISTENER_PREFIX)
        }
        return known.keys() == {each.name for each in self._wanted} and all(
            known[each.name].security_protocol == each.security_protocol
            and known[each.name].port in (0, each.advertised_port or each.port)
            and each.advertised_host in (None, known[each.name].host)
            for each in self._wanted
        )

    # -- what holds --------------------------------------------------------------------------------

    def _own_configs(self) -> Mapping[str, str]:
        cache = self._metadata
        return cache.image.configs.of(ConfigResourceType.BROKER, str(cache.node_id))

    def _with_bound_ports(
        self, listeners: tuple[ListenerConfig, ...]
    ) -> tuple[ListenerConfig, ...]:
        """With the port that is bound where any free one was wanted."""
        return tuple(
            each
            if each.port or each.name not in self._open
            else msgspec.structs.replace(each, port=self._open[each.name][1].port)
            for each in listeners
        )

    def _effective(self) -> tuple[ListenerConfig, ...] | None:
        """The listeners of the configuration; None, and a line in the log, if it contradicts
        itself."""
        try:
            listeners = effective_config(self._config, self._metadata.image).listeners
            return self._with_bound_ports(listeners)
        except ConfigurationError as error:
            changed = ", ".join(sorted(LISTENER_KEYS & self._own_configs().keys()))
            log.error(
                "the listeners stay as they are: their settings contradict each other",
                key=changed,
                reason=str(error),
            )
            return None


def _place(config: ListenerConfig) -> _Place:
    return config.host, config.port

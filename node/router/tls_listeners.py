"""The TLS of this router's listeners, in step with the configuration and with the files it names.

One invariant: reading stores never delays clients. A change of the configuration is read in a
thread before it is sent to the controller, and what was read is used when the change comes back;
files are looked at in a thread every `RELOAD_S`. Called by process.py and handlers/configs.py.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from odradek.cluster.metadata.settings import listener_settings, settings_of_listener
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.wire.key_stores import KeyStoreError
from odradek.node.wire.listeners import ClientListener
from odradek.node.wire.tls_context import (
    RELOAD_S,
    FileStamps,
    TlsContext,
    TlsListener,
    file_stamps,
    make_tls_context,
)
from odradek.protocol.errors import ApiError, ErrorCode


class TlsListeners:
    """Those of the listeners that have TLS, by name."""

    def __init__(self, metadata: MetadataCache, loop: asyncio.AbstractEventLoop) -> None:
        self._metadata = metadata
        self._loop = loop
        self._listeners: dict[str, TlsListener] = {}
        self._read: dict[TlsSettings, TlsContext] = {}
        """What was read for a change of the configuration that is on its way."""
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, listener: ClientListener) -> TlsListener | None:
        """Read the stores of a listener with TLS, and watch their files from now on; None without.
        It does not wait for what `check_new` has read. One whose stores cannot be used accepts
        nobody until they can."""
        if not listener.is_tls:
            return None
        settings = self._settings(listener.name)
        current = self._read.pop(settings, None)
        if current is not None and current.files != file_stamps(settings):
            current = None
        opened = self._listeners[listener.name] = TlsListener(listener.name, current)
        if current is None:
            await self._loop.run_in_executor(None, opened.open, settings)
        if self._timer is None:
            self._timer = self._loop.call_later(RELOAD_S, self._look_at_files)
        return opened

    def forget(self, name: str) -> None:
        """The listener is gone."""
        self._listeners.pop(name, None)

    async def _make(self, name: str, settings: TlsSettings) -> TlsContext:
        read = partial(make_tls_context, settings)
        try:
            return await self._loop.run_in_executor(None, read)
        except KeyStoreError as error:
            raise KeyStoreError(f"listener {name}: {error}") from error

    async def check_new(
        self, name: str, changes: Mapping[str, str | None], *, keeps_others: bool
    ) -> None:
        """Read the stores of a listener that is added by this broker's configs, changed as in
        `check`. Raises KeyStoreError."""
        settings = self._settings_after(name, changes, keeps_others=keeps_others)
        self._read[settings] = await self._make(name, settings)

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def get(self, name: str) -> TlsListener | None:
        """The TLS of a listener; None if it has none."""
        return self._listeners.get(name)

    def follow(self) -> None:
        """The configuration has changed."""
        for listener in self._listeners.values():
            settings = self._settings(listener.name)
            if listener.current is not None and settings == listener.current.settings:
                continue
            if not listener.is_outdated(settings):
                continue  # what was refused is not tried, and logged, with each other change
            fresh = self._read.pop(settings, None)
            if fresh is not None and fresh.files == file_stamps(settings):
                listener.replace(fresh)
            else:
                listener.follow(settings)
        self._read.clear()

    async def check(self, changes: Mapping[str, str | None], *, keeps_others: bool) -> None:
        """ApiError unless the listeners can have this broker's configs so changed (None: removed).
        With `keeps_others` those that are not named stay as they are."""
        if not keeps_others or any(".ssl." in f".{key}" for key in changes):
            for listener in list(self._listeners.values()):
                settings = self._settings_after(listener.name, changes, keeps_others=keeps_others)
                if listener.current is not None and settings == listener.current.settings:
                    continue
                try:
                    read = partial(listener.check, settings)
                    self._read[settings] = await self._loop.run_in_executor(None, read)
                except KeyStoreError as error:
                    # Kafka's code for a change that the broker itself cannot follow.
                    raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error

    def seconds_left(self) -> dict[str, float]:
        """For each listener that has a certificate, until it expires."""
        now_s = time.time()
        left = {name: each.seconds_left(now_s) for name, each in self._listeners.items()}
        return {name: left_s for name, left_s in left.items() if left_s is not None}

    def problems(self) -> dict[str, int]:
        """For each listener, 1 if its newest stores cannot be used, else 0."""
        return {name: int(bool(each.problem)) for name, each in self._listeners.items()}

    def reloads(self) -> dict[tuple[str, ...], float]:
        """How often the stores of each listener were replaced, and could not be."""
        counts: dict[tuple[str, ...], float] = {}
        for name, each in self._listeners.items():
            counts[name, "succeeded"] = each.reload_count
            counts[name, "failed"] = each.failure_count
        return counts

    def _settings(self, name: str) -> TlsSettings:
        cache = self._metadata
        return listener_settings(
            TlsSettings, cache.image, cache.node_id, cache.static_configs, name
        )

    def _settings_after(
        self, name: str, changes: Mapping[str, str | None], *, keeps_others: bool
    ) -> TlsSettings:
        layers = self._metadata.broker_layers_after(changes, keeps_others=keeps_others)
        return settings_of_listener(TlsSettings, layers, name)

    def _look_at_files(self) -> None:
        pending = [
            (listener, self._settings(listener.name)) for listener in self._listeners.values()
        ]
        reading = self._loop.run_in_executor(None, partial(_read_changed, pending))
        reading.add_done_callback(self._on_read)

    def _on_read(
        self,
        reading: "asyncio.Future[list[tuple[TlsListener, TlsSettings, FileStamps, _Outcome]]]",
    ) -> None:
        if self._timer is None:
            return
        self._timer = self._loop.call_later(RELOAD_S, self._look_at_files)
        for listener, settings, files, outcome in reading.result():
            if settings != self._settings(listener.name):
                continue
            if isinstance(outcome, KeyStoreError):
                listener.refuse(settings, files, outcome)
            else:
                listener.replace(outcome)


_Outcome = TlsContext | KeyStoreError


def _read_changed(
    listeners: list[tuple[TlsListener, TlsSettings]],
) -> list[tuple[TlsListener, TlsSettings, FileStamps, _Outcome]]:
    """What the changed ones of these listeners would have. In a thread."""
    outcomes: list[tuple[TlsListener, TlsSettings, FileStamps, _Outcome]] = []
    for listener, settings in listeners:
        if not listener.is_outdated(settings):
            continue
        files = file_stamps(settings)
        try:
            outcomes.append((listener, settings, files, listener.check(settings)))
        except KeyStoreError as error:
            outcomes.append((listener, settings, files, error))
    return outcomes

"""One instance of the mesh as this gateway has it: a stream that is opened again whenever it is lost, and the relay's mode.

Made and closed by `instances`, one for each incarnation. Owns the task that runs the link. Never decides whether the instance
gets requests.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from gateway.handoff.events import ModeChanged
from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.link import LinkLost
from gateway.mesh.prefill_link import PrefillLink
from gateway.mesh.settings import HandoffChoice
from gateway.mesh.wiring import Wiring
from gateway.mode import DecoderLoad, HandoffMode, Leaning, ModeController, ModePolicy
from pdd.catalog.base import Registration, Role
from pdd.telemetry import get_logger

log = get_logger(__name__)

_FIRST_PAUSE_S = 0.1  # after a stream that worked; doubles with each attempt that fails


class Peer:
    def __init__(self, registration: Registration, wiring: Wiring) -> None:
        self.registration = registration
        self.link: DecodeLink | PrefillLink | None = None  # the one that was last up
        self.absent_since_s: float | None = None  # when the registry first did not list it any more
        self._wiring = wiring
        self._settings = wiring.settings
        self._observer = wiring.observer
        self._controller = ModeController(ModePolicy())
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def leaning(self) -> Leaning:
        """How a relay hands over a request that starts now."""
        match self._settings.handoff:
            case HandoffChoice.ONE_SHOT:
                return Leaning(HandoffMode.ONE_SHOT)
            case HandoffChoice.CATCH_UP:
                return Leaning(HandoffMode.CATCH_UP)
            case HandoffChoice.AUTO:
                return self._controller.leaning

    def renew(self, registration: Registration) -> None:
        """The registry listed the same incarnation again, with the load of the moment."""
        self.registration = registration
        self.absent_since_s = None
        if self.link is not None:
            self.link.registration = registration

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._task = tasks.create_task(self._run(), name=f"peer {self.registration.instance.id}")

    def close(self) -> None:
        """Detach and let the task end; requests that still run there are lost to it."""
        self._closing.set()
        if self.link is not None:
            self.link.detach()
        elif self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        pause_s, why = _FIRST_PAUSE_S, ""
        while not self._closing.is_set():
            link = self._new_link()
            try:
                await link.run(on_up=partial(self._went_up, link))
            except LinkLost as error:
                if self.link is not None or str(error) != why:  # an instance that stays away is logged once
                    log.warning("stream lost", instance=self.registration.instance.id, why=str(error))
                why = str(error)
            finally:
                pause_s = min(self._settings.reconnect_max_s, _FIRST_PAUSE_S if self.link is not None else 2 * pause_s)
                self._went_down()
            with suppress(TimeoutError):  # the pause's end
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()

    def _new_link(self) -> DecodeLink | PrefillLink:
        if self.registration.role is Role.PREFILL:
            return PrefillLink(self.registration, self._wiring)
        return DecodeLink(self.registration, self._wiring, self._on_load)

    def _went_up(self, link: DecodeLink | PrefillLink) -> None:
        self.link = link
        self._observer.link_changed(self.registration.instance.id, connected=True)
        log.info("stream up", instance=self.registration.instance.id, address=self.registration.address)

    def _went_down(self) -> None:
        if self.link is not None:
            self.link = None
            self._observer.link_changed(self.registration.instance.id, connected=False)

    def _on_load(self, load: DecoderLoad) -> None:
        if self.registration.role is not Role.RELAY:
            return
        if self._wiring.on_relay_load is not None:
            self._wiring.on_relay_load()
        if self._settings.handoff is not HandoffChoice.AUTO:
            return
        before = self._controller.leaning
        self._controller.observe(load, asyncio.get_running_loop().time())
        if self._controller.leaning != before and self.link is not None:
            self.link.broadcast(ModeChanged(self._controller.leaning))

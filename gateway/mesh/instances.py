"""The gateway's view of who is there: the registry's list, looked at every half second, and a stream to each instance.

Run by `mesh`. Owns the peers. Keeps the last view while the registry is away, and never closes a stream that works because the
registry has forgotten an instance: it only stops sending it requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.peer import Peer
from gateway.mesh.prefill_link import PrefillLink
from gateway.mesh.wiring import Wiring
from gateway.mode import Leaning
from pdd.catalog.base import Registration, Registry, RegistryUnavailable, Role
from pdd.identity import Instance
from pdd.model.card import ModelCard
from pdd.telemetry import get_logger

log = get_logger(__name__)


class InstanceView:
    def __init__(self, registry: Registry, card: ModelCard, wiring: Wiring) -> None:
        self._registry = registry
        self._card = card
        self._wiring = wiring
        self._settings = wiring.settings
        self._peers: dict[str, Peer] = {}  # by instance id
        self._foreign: set[Instance] = set()
        self._registry_away = False
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Look, connect, look again, until `close`; returns when every stream has ended."""
        async with asyncio.TaskGroup() as tasks:
            while not self._closing.is_set():
                found = await self._look()
                if found is not None:
                    self._update(found, tasks)
                with suppress(TimeoutError):  # time for the next look
                    async with asyncio.timeout(self._settings.instance_poll_s):
                        await self._closing.wait()
            for peer in self._peers.values():
                peer.close()

    def close(self) -> None:
        self._closing.set()

    def ready(self) -> list[Peer]:
        """Everyone who can be given a request now; each has its link."""
        now_s = asyncio.get_running_loop().time()
        return [peer for peer in self._peers.values() if peer.link is not None and peer.link.up and not self._gone(peer, now_s)]

    def registrations(self) -> list[Registration]:
        """Of everyone who can be given a request now."""
        return [peer.registration for peer in self.ready()]

    def main_site(self, instance_id: str) -> str | None:
        """Where a main is; None for what is not known as a main."""
        peer = self._peers.get(instance_id)
        return peer.registration.site if peer is not None and peer.registration.role is Role.MAIN else None

    # The next three are asked for instances that `ready` has just named, without a wait in between.

    def prefill_link(self, instance: Instance) -> PrefillLink:
        link = self._peers[instance.id].link
        assert isinstance(link, PrefillLink)
        return link

    def decode_link(self, instance: Instance) -> DecodeLink:
        link = self._peers[instance.id].link
        assert isinstance(link, DecodeLink)
        return link

    def leaning(self, relay: Instance) -> Leaning:
        return self._peers[relay.id].leaning

    async def _look(self) -> Sequence[Registration] | None:
        """The registry's list; None where it can't be had."""
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                found = await self._registry.instances()
        except (RegistryUnavailable, TimeoutError) as error:
            if not self._registry_away:
                log.warning("registry is away, going on with the last view", error=str(error) or "no answer in time")
            self._registry_away = True
            return None
        if self._registry_away:
            log.info("registry is back", instances=len(found))
        self._registry_away = False
        return found

    def _update(self, found: Sequence[Registration], tasks: asyncio.TaskGroup) -> None:
        now_s = asyncio.get_running_loop().time()
        listed = {registration.instance.id: registration for registration in self._ours(found)}
        for instance_id, peer in tuple(self._peers.items()):
            registration = listed.get(instance_id)
            if registration is None:
                peer.absent_since_s = now_s if peer.absent_since_s is None else peer.absent_since_s
                if peer.ended or (peer.link is None and self._gone(peer, now_s)):
                    self._drop(instance_id)
            elif _same_place(peer.registration, registration):
                peer.renew(registration)
            else:
                self._drop(instance_id)
        for instance_id, registration in listed.items():
            if instance_id not in self._peers:
                self._peers[instance_id] = Peer(registration, self._wiring)
                self._peers[instance_id].start(tasks)

    def _drop(self, instance_id: str) -> None:
        self._peers.pop(instance_id).close()

    def _gone(self, peer: Peer, now_s: float) -> bool:
        """Out of the registry for longer than a restart of the registry would explain."""
        return peer.absent_since_s is not None and now_s - peer.absent_since_s >= self._settings.absence_grace_s

    def _ours(self, found: Sequence[Registration]) -> list[Registration]:
        """Those that serve the gateway's own model; the others are named once in the log."""
        ours = (self._card.model_digest, self._card.tokenizer_digest)
        foreign = [one for one in found if (one.layout.model_digest, one.layout.tokenizer_digest) != ours]
        for registration in foreign:
            if registration.instance not in self._foreign:
                text = "an instance serves another model or tokenizer than the gateway: give both the same PDD_MODEL_DIR"
                log.error(text, instance=str(registration), model=registration.layout.model_digest, gateway_model=ours[0])
        self._foreign = {registration.instance for registration in foreign}
        return [registration for registration in found if registration.instance not in self._foreign]


def _same_place(known: Registration, listed: Registration) -> bool:
    return (known.instance, known.role, known.address) == (listed.instance, listed.role, listed.address)

"""What every stream of the gateway is made with: who speaks, by which settings, who watches, and how a channel is opened.

Made by `mesh`. The network comes in here: gRPC's in a process, one in memory under a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.mesh.observer import MeshObserver
from gateway.mesh.settings import MeshSettings
from pdd.catalog.base import Registration
from pdd.identity import Instance
from pdd.rpc.channel import OpenChannel
from pdd.v1 import prefill_pb2


@dataclass(frozen=True, slots=True)
class Wiring:
    gateway: Instance  # this process, as peers are told
    settings: MeshSettings
    observer: MeshObserver
    dial: OpenChannel
    on_links: Callable[[Registration, Sequence[prefill_pb2.LinkLoad]], None] | None = None  # a prefill told how its transfers go
    on_relay_load: Callable[[], None] | None = None  # a relay told its load

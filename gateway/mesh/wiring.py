"""What every stream of the gateway is made with: who speaks, by which settings, who watches, and how a channel is opened.

Made by `mesh`. The network comes in here: gRPC's in a process, one in memory under a virtual clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.mesh.observer import MeshObserver
from gateway.mesh.settings import MeshSettings
from pdd.identity import Instance
from pdd.rpc.channel import OpenChannel


@dataclass(frozen=True, slots=True)
class Wiring:
    gateway: Instance  # this process, as peers are told
    settings: MeshSettings
    observer: MeshObserver
    dial: OpenChannel

"""Who is who in the mesh: requests, attempts, instances.

Used by every service as dictionary keys and in messages to people. Owns no state. Randomness for incarnations is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd.v1 import identity_pb2


@dataclass(frozen=True, slots=True, order=True)
class RequestId:
    """One attempt at one request; equal in every process of the mesh."""

    gateway: int  # incarnation of the gateway process, 64 bits
    counter: int  # from 1 within that gateway
    attempt: int = 0

    @property
    def lineage(self) -> tuple[int, int]:
        """The request without its attempt: the key under which a newer attempt outdates an older one."""
        return (self.gateway, self.counter)

    def __str__(self) -> str:
        return f"{self.gateway:016x}-{self.counter}.{self.attempt}"

    def to_proto(self) -> identity_pb2.RequestId:
        return identity_pb2.RequestId(gateway=self.gateway, counter=self.counter, attempt=self.attempt)

    @classmethod
    def from_proto(cls, message: identity_pb2.RequestId) -> RequestId:
        return cls(message.gateway, message.counter, message.attempt)


@dataclass(frozen=True, slots=True)
class Instance:
    """One running instance: a stable name and what changes with every start."""

    id: str
    incarnation: int  # 64 bits, random at every start

    def __str__(self) -> str:
        return f"{self.id}@{self.incarnation:016x}"

    def to_proto(self) -> identity_pb2.InstanceRef:
        return identity_pb2.InstanceRef(id=self.id, incarnation=self.incarnation)

    @classmethod
    def from_proto(cls, message: identity_pb2.InstanceRef) -> Instance:
        return cls(message.id, message.incarnation)


def new_incarnation(random_bits: Callable[[int], int]) -> int:
    """Draw an incarnation; `random_bits` is e.g. `random.SystemRandom().getrandbits`. Never 0, which means "unset"."""
    return random_bits(64) | 1

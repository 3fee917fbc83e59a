"""What a handoff of 100 eager tokens costs on the link to main and on the one to the relay, with nothing left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gateway.handoff.actions import Action, Extend, StopRelay, ThrottleRelay
from gateway.handoff.estimate import HandoffPolicy
from gateway.handoff.events import Extended, FirstToken, HandoffEvent, KvReady, NewTokens, Stopped
from gateway.handoff.machine import HandoffMachine, Pipeline
from gateway.handoff.pace import Pace
from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.observer import Unobserved
from gateway.mesh.settings import MeshSettings
from gateway.mesh.wiring import Wiring
from gateway.mode import HandoffMode, Leaning
from pdd.catalog.base import Role
from pdd.decode import events
from pdd.engine.base import Extended as EngineExtended
from pdd.engine.base import Stopped as EngineStopped
from pdd.identity import Instance
from pdd.rpc.channel import open_channel
from pdd.v1 import decode_pb2
from tests.unit.gateway.instances import registration

EAGER = 100
HANDLE = 60_000  # of a stream that has carried many requests
VOCABULARY = 128_000
CPU = Pace(relay_interval_s=0.0095, extend_s=0.009, round_trip_s=0.04)  # on a GPU there would hardly be a round


def token(index: int) -> int:
    return VOCABULARY - 1 - index  # the dear ones


class Recording(DecodeLink):
    """A link that keeps what it would send."""

    def __init__(self, role: Role) -> None:
        wiring = Wiring(Instance("gateway-0", 1), MeshSettings(), Unobserved(), open_channel)
        super().__init__(registration(role), wiring, on_load=lambda load: None)
        self.sent: list[bytes] = []

    def _send(self, command: decode_pb2.DecodeCommand) -> None:
        self.sent.append(command.SerializeToString())


@dataclass
class Handoff:
    """A relay that makes a token every 18 ms, throttled, and a main that takes 9 ms an id."""

    machine: HandoffMachine
    relay: Recording = field(default_factory=lambda: Recording(Role.RELAY))
    main: Recording = field(default_factory=lambda: Recording(Role.MAIN))
    answers: list[bytes] = field(default_factory=list)
    made: int = 1
    rounds: int = 0

    def run(self, before: int) -> None:
        self.feed(FirstToken(token(0)))
        self.make(before - self.made)
        self.feed(KvReady(Role.MAIN))

    def make(self, count: int) -> None:
        ids = tuple(token(index) for index in range(self.made, self.made + count))
        self.made += count
        self.feed(NewTokens(Role.RELAY, self.made - count, ids))

    def feed(self, event: HandoffEvent) -> None:
        for action in self.machine.handle(event, 0.0):
            self.perform(action)

    def perform(self, action: Action) -> None:
        match action:
            case ThrottleRelay(min_interval_s=interval_s):
                self.relay.throttle(HANDLE, interval_s)
            case StopRelay():
                self.relay.stop(HANDLE)
                self.make(EAGER - self.made)
                stopped = events.engine_closed(HANDLE, EngineStopped(1, self.made))
                self.answers.append(decode_pb2.DecodeFrame(closing=[stopped]).SerializeToString())
                self.feed(Stopped(Role.RELAY, self.made))
            case Extend():
                self.main.extend(HANDLE, action)
                self.extended(action)

    def extended(self, extend: Extend) -> None:
        count, end = len(extend.ids), extend.first_index + len(extend.ids)
        done = events.extended(HANDLE, EngineExtended(1, end, count, count * 0.009, count, count))
        self.answers.append(decode_pb2.DecodeFrame(opening=[done]).SerializeToString())
        if not extend.then_decode:
            self.rounds += 1
            self.make(min(EAGER - 1 - self.made, 2 + count // 2))
            self.feed(Extended(Role.MAIN, end, count, count * 0.009, count, count))


@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize(("mode", "before"), [(HandoffMode.ONE_SHOT, 99), (HandoffMode.CATCH_UP, 50)])
def test_a_hundred_eager_tokens_are_handed_over_in_500_bytes(mode: HandoffMode, before: int, score: bool) -> None:
    policy = HandoffPolicy(prior=CPU)
    handoff = Handoff(HandoffMachine(Pipeline.RELAY, Leaning(mode), policy, score=score))
    handoff.run(before)
    assert handoff.machine.log.next_index == EAGER
    assert handoff.machine.handoff is mode
    assert (handoff.rounds > 2) is (mode is HandoffMode.CATCH_UP)
    messages = [*handoff.relay.sent, *handoff.main.sent, *handoff.answers]
    assert 3 * EAGER < sum(len(message) for message in messages) <= 500

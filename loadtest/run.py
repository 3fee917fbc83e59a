"""What all users of one test share: the APIs, the traffic, the measures. Made once, when locust has read its options."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from random import Random

import grpc.experimental.gevent
from locust.env import Environment

from loadtest.api import Api
from loadtest.grpc_api import GrpcApi
from loadtest.http_api import HttpApi, served_model
from loadtest.measures import Measures
from loadtest.options import Options
from loadtest.replay import Replay
from loadtest.traffic import Chats, ChatTurn, agents, documents
from pdd.client import Client, Retry
from pdd.model.load import load_card
from virtual.workloads.base import Session
from virtual.workloads.mooncake import Mooncake, read_trace


class Run:
    def __init__(self, environment: Environment, options: Options, process: int) -> None:
        """`process` is its number among those of one test: each draws what the others do not.

        Raises OSError and HTTPException where the gateway does not answer, ModelFilesError where its tokenizer is not here.
        """
        self.measures = Measures(environment)
        self.options = options
        self.clock = time.monotonic
        random = Random(f"{options.seed}/{process}")
        self.chats: Iterator[Generator[ChatTurn, str, None]] = Chats(options.length_scale).conversations(_own(random))
        self.agents: Iterator[Session] = agents(options.length_scale).sessions(_own(random))
        self.documents: Iterator[Session] = documents(options.length_scale).sessions(_own(random))
        self.chance = _own(random)  # who leaves, and when
        self.seeds = itertools.count(options.seed)
        self.replay = None if options.trace is None else _replay(options)
        self._apis = [self._api(name) for name in options.apis]
        self._given: dict[str, Iterator[Api]] = {}
        self._began_s: float | None = None

    def next_api(self, kind: str) -> Api:
        """For the next user of a kind: all of them in turn."""
        return next(self._given.setdefault(kind, itertools.cycle(self._apis)))

    def now_s(self) -> float:
        """From the first call on: a replay begins with the first user that it needs."""
        now_s = self.clock()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s

    def _api(self, name: str) -> Api:
        if name == "grpc":
            grpc.experimental.gevent.init_gevent()
            return GrpcApi(Client(self.options.grpc, retry=Retry(attempts=1)).__enter__(), self.clock)
        model = served_model(self.options.host)
        card = load_card("sim", self.options.model_dir)
        if card.name != model:
            card = load_card("llama", self.options.model_dir)
        return HttpApi(self.options.host, model, card.tokenizer, self.clock)


def _own(random: Random) -> Random:
    return Random(random.getrandbits(64))


def _replay(options: Options) -> Replay:
    assert options.trace is not None
    with options.trace.open() as lines:
        return Replay(Mooncake(tuple(read_trace(lines)), scale=options.trace_scale, rate=options.trace_rate))

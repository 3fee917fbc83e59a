"""The kinds of users. Each is a client that asks one thing after the other, on one of the two APIs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import ClassVar

import gevent
from gevent import GreenletExit
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.answer import AnswerFailed, Ask, ClientLeft, Message, Reading
from loadtest.run import Run
from loadtest.traffic import ChatTurn
from virtual.workloads.base import Ids, Session, Turn


class MeshUser(User):
    abstract = True
    kind: ClassVar[str]
    run_of_test: ClassVar[Run]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._api = self.run_of_test.next_api(self.kind)
        self._name = f"{self.kind} {self._api.name}"

    def ask(self, prompt: Ids | tuple[Message, ...], max_tokens: int, expected_tokens: int | None = None) -> Reading | None:
        """The answer, which is counted by then; None where there is none, or not all of it."""
        run = self.run_of_test
        ask = Ask(prompt, max_tokens, next(run.seeds), expected_tokens, self._leave_after(max_tokens))
        reading = Reading(ask, run.clock())
        try:
            self._api.read(ask, reading)
        except (ClientLeft, GreenletExit) as left:
            run.measures.cancelled(self._name, reading, run.clock())
            if isinstance(left, GreenletExit):
                raise
            return None
        except AnswerFailed as error:
            run.measures.failed(self._name, reading, error)
            return None
        run.measures.completed(self._name, reading)
        return reading

    def _leave_after(self, max_tokens: int) -> int | None:
        chance = self.run_of_test.chance
        if chance.random() >= self.run_of_test.options.cancel_share:
            return None
        return chance.randint(1, max(1, max_tokens // 2))


class ChatUser(MeshUser):
    """A person who chats, over the chat API; the history is what was really answered."""

    kind = "chat"
    weight = 6
    _conversation: Generator[ChatTurn, str, None]
    _turn: ChatTurn

    def on_start(self) -> None:
        self._begin()

    def wait_time(self) -> float:
        return self._turn.think_s

    @task
    def turn(self) -> None:
        reading = self.ask(self._turn.messages, self._turn.max_tokens)
        if reading is None:
            self._begin()
            return
        try:
            self._turn = self._conversation.send(reading.text)
        except StopIteration:
            self._begin()

    def _begin(self) -> None:
        self._conversation = next(self.run_of_test.chats)
        self._turn = next(self._conversation)


class SessionUser(MeshUser):
    """Walks through sessions of a workload, one after the other."""

    abstract = True
    _session: Session
    _turn: Turn

    @property
    def sessions(self) -> Iterator[Session]:
        raise NotImplementedError

    def on_start(self) -> None:
        self._begin()

    def wait_time(self) -> float:
        return self._turn.think_s

    @task
    def turn(self) -> None:
        reading = self.ask(self._turn.prompt, self._turn.max_tokens, self.expected_tokens(self._turn))
        following = None if reading is None else self._session.next_turn(reading.ids)
        if following is None:
            self._begin()
        else:
            self._turn = following

    def expected_tokens(self, turn: Turn) -> int | None:
        return turn.expected_tokens

    def _begin(self) -> None:
        self._session = next(self.sessions)
        first = self._session.next_turn(())
        assert first is not None  # every session has a turn
        self._turn = first


class AgentUser(SessionUser):
    """An agent with tools: each prompt repeats the one before it and adds a little; now and then it has something long read."""

    kind = "agents"
    weight = 3

    @property
    def sessions(self) -> Iterator[Session]:
        return self.run_of_test.agents


class DocumentUser(SessionUser):
    """Asks something short about something long, and says that the answer will be short: singular traffic."""

    kind = "documents"
    weight = 1

    @property
    def sessions(self) -> Iterator[Session]:
        return self.run_of_test.documents

    def expected_tokens(self, turn: Turn) -> int | None:
        return turn.max_tokens


class TraceUser(MeshUser):
    """Asks what is due next in the trace; the shape sees to it that there are enough of them."""

    kind = "trace"

    @task
    def next_request(self) -> None:
        replay = self.run_of_test.replay
        assert replay is not None  # without a trace there are no such users
        due = replay.take()
        if due is None:
            raise StopUser
        try:
            gevent.sleep(max(0.0, due.at_s - self.run_of_test.now_s()))
            self.ask(due.turn.prompt, due.turn.max_tokens)
        finally:
            replay.ended()

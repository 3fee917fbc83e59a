import asyncio

from gateway.generation import Tokens
from gateway.mesh.unread import Unread
from pdd.sampling import TokenLogprobs

LOGPROBS = TokenLogprobs(-1.0, ())


def test_unread_tokens_come_in_one_piece_per_instance() -> None:
    unread = Unread(bound=10)
    for tokens in (
        Tokens(0, (1,), "p"),
        Tokens(1, (2,), "r", (LOGPROBS,)),
        Tokens(2, (3, 4), "r", (LOGPROBS, LOGPROBS)),
        Tokens(4, (5,), "m"),
    ):
        assert unread.add(tokens)
    assert unread.take() == Tokens(0, (1,), "p")
    assert unread.take() == Tokens(1, (2, 3, 4), "r", (LOGPROBS,) * 3)
    assert unread.taken_tokens == 4
    assert unread.take() == Tokens(4, (5,), "m")
    assert unread.take() is None


def test_unread_tokens_are_bounded() -> None:
    unread = Unread(bound=3)
    assert unread.add(Tokens(0, (1, 2), "r"))
    assert not unread.add(Tokens(2, (3, 4), "r"))
    assert unread.take() == Tokens(0, (1, 2), "r")
    assert unread.add(Tokens(2, (3, 4), "r"))  # room again


async def test_reader_wakes_for_tokens_and_for_news() -> None:
    unread = Unread(bound=3)
    async with asyncio.timeout(5):
        for happens in (lambda: unread.add(Tokens(0, (1,), "r")), unread.wake):
            waiting = asyncio.ensure_future(unread.changed())
            await asyncio.sleep(0)
            assert not waiting.done()
            happens()
            await waiting


class Ear:
    """Counts what it hears, and reads nothing."""

    def __init__(self) -> None:
        self.heard = 0

    def __call__(self) -> None:
        self.heard += 1


def test_a_listener_hears_of_tokens_and_of_news_at_once() -> None:
    unread, ear = Unread(bound=3), Ear()
    unread.listen(ear)
    unread.add(Tokens(0, (1,), "r"))
    unread.wake()
    assert ear.heard == 2


def test_a_listener_that_is_held_back_hears_once_and_only_of_changes() -> None:
    unread, ear = Unread(bound=3), Ear()
    unread.listen(ear)
    unread.hold()
    unread.add(Tokens(0, (1,), "r"))
    unread.add(Tokens(1, (2,), "r"))
    assert ear.heard == 0
    unread.let_go()
    assert ear.heard == 1
    unread.hold()
    unread.let_go()
    assert ear.heard == 1


async def test_who_waits_after_a_listener_has_gone_is_woken_by_what_comes_then() -> None:
    unread = Unread(bound=3)
    unread.listen(Ear())
    unread.add(Tokens(0, (1,), "r"))
    unread.listen(None)
    waiting = asyncio.ensure_future(unread.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    unread.add(Tokens(1, (2,), "r"))
    async with asyncio.timeout(5):
        await waiting

"""One client of a Redis or Valkey server, with a deadline on every call.

Used by both Redis backends. Owns the connections; an error names the server, never its password.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from pdd.catalog.base import RegistryUnavailable
from pdd.rpc.errors import StartupError

SOCKET_TIMEOUT_S = 1.5
CALL_TIMEOUT_S = 4.0  # of one round trip with its reconnections

Word = str | bytes | int


class Script:
    """A Lua script, sent by its digest once the server has it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisServer:
    """`url` is redis://[[user]:password@]host:port[/db], or rediss://. Connects at the first call, and again after a loss."""

    def __init__(self, url: str, deadline_s: float = CALL_TIMEOUT_S) -> None:
        """Raises StartupError for a URL that is none."""
        self.name = _without_password(url)
        self._deadline_s = deadline_s
        self._client = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            # One: a kept connection may have died with a server that is back by now.
            retry=Retry(NoBackoff(), 1),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """One round trip; two where the server has not seen the script since its start. Raises RegistryUnavailable."""

        async def evaluate(client: Redis) -> Any:
            try:
                return await client.evalsha(script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await client.eval(script.text, len(keys), *keys, *arguments)

        return await self.call(evaluate)

    async def call(self, command: Callable[[Redis], Awaitable[Any]]) -> Any:
        """Raises RegistryUnavailable. The server may block for less than SOCKET_TIMEOUT_S."""
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await command(self._client)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            reason = str(error) or f"no answer in {self._deadline_s:g} s"
            raise RegistryUnavailable(f"registry at {self.name} can't be used: {reason}") from error
        finally:
            # The client sends through asyncio.wait_for, which can lose a cancellation before Python 3.12: who waits for the
            # task's end would wait for ever.
            if task.cancelling() > cancelled:
                raise asyncio.CancelledError


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or 6379
    except ValueError as error:
        raise StartupError(f"registry URL: {error}; give redis://host:port/0") from error
    if parts.scheme not in ("redis", "rediss") or not host:
        raise StartupError(f"registry URL with scheme {parts.scheme!r} and host {host!r}: give redis://host:port/0")
    return f"{parts.scheme}://{host}:{port}{parts.path}"

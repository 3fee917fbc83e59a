"""Both clients behind one face, so that each test of them holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from pdd.client import AsyncClient, Client, Delta, Model, Request, Result


class Asking(Protocol):
    """`settings` are those of the client, `options` those of the call."""

    async def stream(
        self, address: str, request: Request, settings: dict[str, Any], **options: Any
    ) -> tuple[list[Delta], Result]: ...

    async def once(self, address: str, request: Request, settings: dict[str, Any], **options: Any) -> Result: ...

    async def first(self, address: str, request: Request) -> Delta:
        """Read one delta and leave."""
        ...

    async def cancelled(self, address: str, request: Request, settings: dict[str, Any], cue: Awaitable[None]) -> None:
        """Read on, and cancel after the cue."""
        ...

    async def left(self, address: str, request: Request, cue: Awaitable[None], *, once: bool) -> None:
        """Read on, and leave the client after the cue."""
        ...

    async def models(self, address: str) -> tuple[Model, ...]: ...


class AsAsyncio:
    async def stream(
        self, address: str, request: Request, settings: dict[str, Any], **options: Any
    ) -> tuple[list[Delta], Result]:
        async with AsyncClient(address, **settings) as client, client.generate(request, **options) as answer:
            return [delta async for delta in answer], answer.result

    async def once(self, address: str, request: Request, settings: dict[str, Any], **options: Any) -> Result:
        async with AsyncClient(address, **settings) as client:
            return await client.generate_once(request, **options)

    async def first(self, address: str, request: Request) -> Delta:
        async with AsyncClient(address) as client, client.generate(request) as answer:
            return await anext(answer)

    async def cancelled(self, address: str, request: Request, settings: dict[str, Any], cue: Awaitable[None]) -> None:
        async def read() -> None:
            async for _ in answer:
                pass

        async with AsyncClient(address, **settings) as client, client.generate(request) as answer:
            reading = asyncio.create_task(read())
            await cue
            answer.cancel()
            await reading

    async def left(self, address: str, request: Request, cue: Awaitable[None], *, once: bool) -> None:
        async def read() -> None:
            if once:
                await client.generate_once(request)
            async with client.generate(request) as answer:
                async for _ in answer:
                    pass

        async with AsyncClient(address) as client:
            reading = asyncio.create_task(read())
            await cue
        await reading

    async def models(self, address: str) -> tuple[Model, ...]:
        async with AsyncClient(address) as client:
            return await client.list_models()


class AsThreads:
    async def stream(
        self, address: str, request: Request, settings: dict[str, Any], **options: Any
    ) -> tuple[list[Delta], Result]:
        def ask() -> tuple[list[Delta], Result]:
            with Client(address, **settings) as client, client.generate(request, **options) as answer:
                return list(answer), answer.result

        return await asyncio.to_thread(ask)

    async def once(self, address: str, request: Request, settings: dict[str, Any], **options: Any) -> Result:
        def ask() -> Result:
            with Client(address, **settings) as client:
                return client.generate_once(request, **options)

        return await asyncio.to_thread(ask)

    async def first(self, address: str, request: Request) -> Delta:
        def ask() -> Delta:
            with Client(address) as client, client.generate(request) as answer:
                return next(answer)

        return await asyncio.to_thread(ask)

    async def cancelled(self, address: str, request: Request, settings: dict[str, Any], cue: Awaitable[None]) -> None:
        with Client(address, **settings) as client, client.generate(request) as answer:
            reading = asyncio.create_task(asyncio.to_thread(list, answer))
            await cue
            answer.cancel()
            await reading

    async def left(self, address: str, request: Request, cue: Awaitable[None], *, once: bool) -> None:
        def read() -> None:
            if once:
                client.generate_once(request)
            with client.generate(request) as answer:
                list(answer)

        with Client(address) as client:
            reading = asyncio.create_task(asyncio.to_thread(read))
            await cue
        await reading

    async def models(self, address: str) -> tuple[Model, ...]:
        def ask() -> tuple[Model, ...]:
            with Client(address) as client:
                return client.list_models()

        return await asyncio.to_thread(ask)

"""Ask three questions at once with pdd.client. The gateway's host:port may be given as an argument."""

import asyncio
import sys

from pdd.client import AsyncClient, Chat, ClientError, Request

THINGS = ("the sea", "the night", "the wind")


async def tell(client: AsyncClient, thing: str) -> str:
    request = Request(Chat.question(f"Tell me about {thing}."), max_tokens=60)
    text = ""
    async with client.generate(request, timeout_s=60, request_id=thing.replace(" ", "-")) as answer:
        async for delta in answer:
            text += delta.text
            if delta.text.endswith("."):
                break  # one sentence will do: leaving cancels the rest
    return text


async def main() -> None:
    async with AsyncClient(*sys.argv[1:]) as client:
        for text in await asyncio.gather(*(tell(client, thing) for thing in THINGS)):
            print(text)


try:
    asyncio.run(main())
except ClientError as error:
    sys.exit(str(error))

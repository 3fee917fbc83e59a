"""Programs of others, and the examples, against the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.mesh.api.conftest import Gateway

TEXT = " the river ran to the sea."
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
DOCUMENT = ROOT / "docs" / "clients.md"


async def run_example(name: str, url: str, grpc_address: str) -> str:
    """What the example prints, which must end well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        grpc_address,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"OPENAI_BASE_URL": f"{url}/v1"},
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


@pytest.mark.parametrize("example", ["client.py", "grpc_stubs.py", "openai_client.py"])
async def test_the_example_prints_the_answer(gateway: Gateway, example: str) -> None:
    assert await run_example(example, gateway.http, gateway.grpc) == TEXT + "\n"


async def test_the_example_that_asks_three_things_prints_three_answers(gateway: Gateway) -> None:
    assert await run_example("client_asyncio.py", gateway.http, gateway.grpc) == (TEXT + "\n") * 3
    assert {spec.label for spec in gateway.generator.specs} == {"the-sea", "the-night", "the-wind"}


async def test_the_program_in_the_document_prints_the_answer_and_how_it_was_made(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    program = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    await asyncio.to_thread(exec, program.replace("127.0.0.1:50050", gateway.grpc), {})
    assert capsys.readouterr().out == f"{TEXT}\n9 tokens over the pipeline relay\n"


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "client.py",
        "client_asyncio.py",
        "grpc_stubs.py",
        "openai_client.py",
    }


# What aiperf 0.13 sends (its ChatEndpoint and CompletionsEndpoint): by default without streaming and without a bound on tokens;
# with --streaming it always asks for usage; --output-tokens-mean adds max_completion_tokens (max_tokens with
# --use-legacy-max-tokens), --extra-inputs the rest. Several texts in a turn become text parts, an empty one an empty string.
USER = {"role": "user", "content": "Tell me about the sea."}
AIPERF_CHAT = {"messages": [USER], "model": "pdd-sim", "stream": False}
AIPERF_COMPLETION = {"prompt": "Tell me about the sea.", "model": "pdd-sim", "stream": False}
STREAMING = {"stream": True, "stream_options": {"include_usage": True}}
PARTS = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": " about the sea."}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", AIPERF_CHAT),
        ("/v1/chat/completions", AIPERF_CHAT | STREAMING),
        ("/v1/chat/completions", AIPERF_CHAT | STREAMING | {"max_completion_tokens": 20, "min_tokens": 20, "ignore_eos": True}),
        ("/v1/chat/completions", AIPERF_CHAT | {"max_tokens": 20}),
        (
            "/v1/chat/completions",
            AIPERF_CHAT | {"messages": [{"role": "system", "content": "Be brief."}, USER]},
        ),
        ("/v1/chat/completions", AIPERF_CHAT | {"messages": [{"role": "user", "content": PARTS}]}),
        ("/v1/chat/completions", AIPERF_CHAT | {"messages": [{"role": "user", "content": ""}]}),
        ("/v1/completions", AIPERF_COMPLETION),
        ("/v1/completions", AIPERF_COMPLETION | STREAMING | {"max_tokens": 20}),
    ],
)
async def test_aiperfs_bodies_are_answered_as_it_reads_them(
    gateway: Gateway, http: aiohttp.ClientSession, path: str, body: dict[str, object]
) -> None:
    headers = {"Accept": "text/event-stream" if body["stream"] else "application/json", "User-Agent": "aiperf/1.0"}
    async with http.post(gateway.http + path, json=body, headers=headers) as reply:
        assert reply.status == 200
        text = await reply.text()
    if not body["stream"]:
        (choice,) = json.loads(text)["choices"]
        assert choice.get("text") or choice["message"]["content"]
        return
    events = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if "chat" in path else "text_completion"}

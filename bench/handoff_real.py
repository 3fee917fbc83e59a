"""Catch-Up against One-Shot with the real model: real processes, a TCP line with a round trip. Called by `bench.handoff`.

On a CPU an extend is not almost free as it is on a GPU: all eager tokens in one pass hold main up, so this is where the modes
differ. The line is held slow until the relay has made enough tokens, then opened. The text has to be the same in both modes.

    raw gap      from the relay's last token to main's first, at the gateway
    user's gap   the longest that the reader of the stream has waited around the switch
    largest      the longest that the reader has waited for a token anywhere in the answer
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import grpc.aio

from bench.report import print_table, write_json
from pdd.cli.cluster import LocalMesh
from pdd.cli.plan import EngineName, Handoff, MeshOptions, Pipeline
from pdd.v1 import inference_pb2, inference_pb2_grpc

TOKENS = 400
EAGER_AT_LEAST = 60
HELD_MBIT = 0.2
PROMPT = (
    "<|im_start|>user\nWhy is the sky blue, and why is the sunset red? Explain it to a curious child in a few paragraphs."
    "<|im_end|>\n<|im_start|>assistant\n"
)
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; times in milliseconds."""

    asked: str
    went: str
    eager_tokens: int
    main_tokens: int
    rounds: int
    raw_gap_ms: float
    user_gap_ms: float
    largest_ms: float
    median_ms: float  # between two tokens
    text: str


async def compare(model_dir: Path, rtt_ms: float, rounds: int, path: Path) -> None:
    """Print both modes' answers and the ratios of their raw gaps."""
    one_shot = await _answers(model_dir, rtt_ms, rounds, Handoff.ONE_SHOT)
    catch_up = await _answers(model_dir, rtt_ms, rounds, Handoff.CATCH_UP)
    answers = [*one_shot, *catch_up]
    print_table(HEAD, [_line(answer) for answer in answers])
    ratios = {"largest": _ratio(max, catch_up, one_shot), "median": _ratio(statistics.median, catch_up, one_shot)}
    texts = len({answer.text for answer in answers})
    print(f"\nraw gap of catch_up over that of one_shot: largest {ratios['largest']:.2f}, median {ratios['median']:.2f}")
    print(f"different texts: {texts}")
    write_json(path, {"rtt_ms": rtt_ms, "ratios": ratios, "texts": texts, "answers": [asdict(answer) for answer in answers]})


def _ratio(figure: Callable[[list[float]], float], some: Sequence[Answer], others: Sequence[Answer]) -> float:
    return figure([answer.raw_gap_ms for answer in some]) / figure([answer.raw_gap_ms for answer in others])


async def _answers(model_dir: Path, rtt_ms: float, rounds: int, mode: Handoff) -> list[Answer]:
    options = MeshOptions(
        engine=EngineName.LLAMA,
        pipeline=Pipeline.RELAY,
        handoff=mode,
        rtt_ms=rtt_ms,
        model_dir=model_dir,
        environment={"PDD_PREFIX_CACHE_MB": "0"},  # the same prompt again is to cross again
    )
    async with LocalMesh(options) as mesh, grpc.aio.insecure_channel(mesh.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        return [await _answer(stub, mesh, mode) for _ in range(rounds)]


async def _answer(stub: inference_pb2_grpc.InferenceAsyncStub, mesh: LocalMesh, mode: Handoff) -> Answer:
    await _set_rate(mesh, HELD_MBIT)
    request = inference_pb2.GenerateRequest(
        prompt=PROMPT, options=inference_pb2.GenerateOptions(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    )
    arrived_s: list[float] = []
    sources: list[str] = []
    text, done = "", None
    async for reply in stub.Generate(request, timeout=TIMEOUT_S):
        text += reply.delta.text
        if reply.delta.tokens:
            arrived_s.append(asyncio.get_running_loop().time())
            sources += [reply.delta.source] * len(reply.delta.tokens)
            if EAGER_AT_LEAST <= len(sources) < 2 * EAGER_AT_LEAST:
                await _set_rate(mesh, None)
        if reply.HasField("done"):
            done = reply.done
    assert done is not None
    return _summary(mode, done.timeline, sources, arrived_s, text)


def _summary(
    mode: Handoff, timeline: inference_pb2.Timeline, sources: Sequence[str], arrived_s: Sequence[float], text: str
) -> Answer:
    gaps_ms = [1000 * (after - before) for before, after in itertools.pairwise(arrived_s)]
    return Answer(
        asked=mode.value,
        went=timeline.handoff,
        eager_tokens=timeline.eager_tokens,
        main_tokens=sum(source.startswith("main") for source in sources),
        rounds=sum(span.name == "extend" for span in timeline.spans),
        raw_gap_ms=timeline.switch_gap_us / 1000,
        user_gap_ms=timeline.user_gap_us / 1000,
        largest_ms=max(gaps_ms),
        median_ms=statistics.median(gaps_ms),
        text=text,
    )


async def _set_rate(mesh: LocalMesh, rate_mbit: float | None) -> None:
    """None lifts the limit."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.patch(f"{mesh.wan_control_url}/link", json={"rate_mbit": rate_mbit}) as response,
    ):
        response.raise_for_status()


HEAD = ("asked", "went", "eager", "by main", "extends", "raw gap", "user's gap", "largest", "median")


def _line(answer: Answer) -> tuple[str, ...]:
    return (
        answer.asked,
        answer.went,
        str(answer.eager_tokens),
        str(answer.main_tokens),
        str(answer.rounds),
        *(f"{value:.0f} ms" for value in (answer.raw_gap_ms, answer.user_gap_ms, answer.largest_ms, answer.median_ms)),
    )

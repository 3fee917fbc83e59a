"""The options of a load test beside locust's own.

`--host` is the gateway's HTTP address, where its metrics are: it is needed by tests over gRPC too.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from pdd.client.request import DEFAULT_ADDRESS

DEFAULT_HOST = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    apis: tuple[str, ...]  # "http", "grpc"
    grpc: str  # host:port
    model_dir: Path
    seed: int
    length_scale: float
    cancel_share: float
    trace: Path | None
    trace_scale: float
    trace_rate: float
    check_counters: bool


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("PDD")
    group.add_argument("--api", choices=("http", "grpc", "both"), default="http", help="both: every other user takes gRPC")
    group.add_argument("--grpc", metavar="HOST:PORT", default=DEFAULT_ADDRESS, help="the gateway's gRPC API")
    group.add_argument(
        "--model-dir",
        default="models/SmolLM2-135M-Instruct",
        help="where the tokenizer of a real model is; the sim's needs no folder",
    )
    group.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    group.add_argument("--length-scale", type=float, default=1.0, help="of the lengths of prompts and answers")
    group.add_argument("--cancel-share", type=float, default=0.0, help="of the requests whose client leaves early, 0..1")
    group.add_argument("--trace", metavar="FILE", default="", help="replay this trace (Mooncake's format) and nothing else")
    group.add_argument("--trace-scale", type=float, default=0.0625, help="of the trace's lengths, a power of 1/2")
    group.add_argument("--trace-rate", type=float, default=1.0, help="how much faster than the trace")
    group.add_argument("--check-counters", action="store_true", help="exit with 1 where the gateway has counted otherwise")


def options_of(parsed: Namespace, host: str | None) -> Options:
    return Options(
        host=(host or parsed.host or DEFAULT_HOST).rstrip("/"),
        apis=("http", "grpc") if parsed.api == "both" else (parsed.api,),
        grpc=parsed.grpc,
        model_dir=Path(parsed.model_dir),
        seed=parsed.seed,
        length_scale=parsed.length_scale,
        cancel_share=parsed.cancel_share,
        trace=Path(parsed.trace) if parsed.trace else None,
        trace_scale=parsed.trace_scale,
        trace_rate=parsed.trace_rate,
        check_counters=parsed.check_counters,
    )

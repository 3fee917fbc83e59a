"""Which processes a local mesh consists of, and the environment each gets.

Called by `cluster`. Pure: options and addresses in, process descriptions out; starts nothing and opens nothing.

    site a:  prefill-*  relay-*  gateway  valkey          site b:  main-*
                           └───────────── wan ─────────────────────┘
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_RTT_MS = 40.0
DEFAULT_RATE_MBIT = 50.0
LOOPBACK = "127.0.0.1"
ANY_PORT = f"{LOOPBACK}:0"

# One engine thread a process: OpenMP with more threads than cores collapses.
PROCESS_ENVIRONMENT: Mapping[str, str] = {"OMP_NUM_THREADS": "1"}

# gRPC's newer I/O engine hands what a stream brings through four threads, the older one through two. At a frame every few
# milliseconds waking them costs more than reading the frame (bench/gateway.py). gRPC reads this when it is loaded.
GATEWAY_ENVIRONMENT: Mapping[str, str] = {"GRPC_EXPERIMENTS": "-event_engine_client"}

# Set for each process, or for none: never taken over from the environment that `pdd up` itself was started in.
_PER_PROCESS = frozenset(
    {
        "PDD_INSTANCE_ID",
        "PDD_SITE",
        "PDD_LISTEN",
        "PDD_ADVERTISE",
        "PDD_WAN_CONTROL",
        "PDD_WAN_CONTROL_LISTEN",
        "PDD_WAN_FORWARD_HOST",
        "PDD_WAN_RATE_MBIT",
        "PDD_WAN_RTT_MS",
        "PDD_HTTP",
    }
)


class EngineName(enum.StrEnum):
    SIM = "sim"
    LLAMA = "llama"


class Pipeline(enum.StrEnum):
    AUTO = "auto"
    RELAY = "relay"
    DIRECT = "direct"


class Handoff(enum.StrEnum):
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """What a local mesh is to be. Addresses are host:port; port 0 takes a free one."""

    engine: EngineName = EngineName.SIM
    pipeline: Pipeline = Pipeline.AUTO
    handoff: Handoff = Handoff.AUTO
    prefills: int = 1
    relays: int = 1
    mains: int = 1
    gateway_workers: int = 1
    rtt_ms: float = DEFAULT_RTT_MS
    rate_mbit: float = DEFAULT_RATE_MBIT  # each direction
    http: str = ANY_PORT
    grpc: str = ANY_PORT
    wan_control: str = ANY_PORT
    model_dir: Path = Path("models")
    redis_url: str | None = None  # None starts an embedded Valkey
    log_dir: Path | None = None  # None makes a new one in the temporary directory
    ready_timeout_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)  # for every process, over what is set here

    def __post_init__(self) -> None:
        if self.prefills < 1 or self.mains < 1:
            raise ValueError("a mesh needs at least one prefill and one main")
        if self.gateway_workers < 1:
            raise ValueError("a gateway needs at least one worker")
        if self.relays < 0 or (self.relays == 0 and self.pipeline is Pipeline.RELAY):
            raise ValueError("the relay pipeline needs at least one relay; use --pipeline auto or direct to go without")
        if self.rtt_ms < 0 or self.rate_mbit <= 0:
            raise ValueError(f"a link of {self.rate_mbit:g} Mbit/s and {self.rtt_ms:g} ms RTT can't be built: rate > 0, RTT >= 0")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the mesh is reached, every port known."""

    http: str
    grpc: str
    wan_control: str
    redis_url: str

    @property
    def http_url(self) -> str:
        return f"http://{self.http}"

    @property
    def wan_control_url(self) -> str:
        return f"http://{self.wan_control}"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: `python -m module` with `environment` on top of the inherited one."""

    name: str  # also the instance's id and its log file's name
    module: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """Processes by the order they start in: the WAN relay first, since mains lease a port from it."""

    wan: ProcessSpec
    instances: tuple[ProcessSpec, ...]
    gateway: ProcessSpec


def plan_mesh(options: MeshOptions, addresses: Addresses) -> MeshPlan:
    shared = _shared_environment(options, addresses)
    link = {
        "PDD_WAN_CONTROL_LISTEN": addresses.wan_control,
        "PDD_WAN_FORWARD_HOST": LOOPBACK,
        "PDD_WAN_RATE_MBIT": f"{options.rate_mbit:g}",
        "PDD_WAN_RTT_MS": f"{options.rtt_ms:g}",
    }
    gateway = {
        "PDD_SITE": "a",
        "PDD_INSTANCE_ID": "gateway",
        "PDD_LISTEN": addresses.grpc,
        "PDD_HTTP": addresses.http,
        "PDD_WORKERS": str(options.gateway_workers),
        "PDD_PIPELINE": options.pipeline.value,
        "PDD_WAN_MBIT": f"{options.rate_mbit:g}",  # believed until measured
        "PDD_HANDOFF": options.handoff.value,
    }
    behind_link = {"PDD_WAN_CONTROL": addresses.wan_control_url}
    return MeshPlan(
        wan=ProcessSpec("wan", "wan", shared | link),
        instances=(
            *(_instance("prefill", number, "a", shared) for number in range(options.prefills)),
            *(_instance("relay", number, "a", shared) for number in range(options.relays)),
            *(_instance("main", number, "b", shared | behind_link) for number in range(options.mains)),
        ),
        gateway=ProcessSpec("gateway", "gateway", {**GATEWAY_ENVIRONMENT, **shared, **gateway}),
    )


def inherited_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What every process takes over from the one that starts it."""
    return {name: value for name, value in own.items() if name not in _PER_PROCESS}


def _shared_environment(options: MeshOptions, addresses: Addresses) -> dict[str, str]:
    return {
        **PROCESS_ENVIRONMENT,
        "PDD_ENGINE": options.engine.value,
        "PDD_MODEL_DIR": str(options.model_dir),
        "PDD_REDIS_URL": addresses.redis_url,
        **options.environment,
    }


def _instance(role: str, number: int, site: str, environment: Mapping[str, str]) -> ProcessSpec:
    name = f"{role}-{number}"
    own = {"PDD_INSTANCE_ID": name, "PDD_SITE": site, "PDD_LISTEN": ANY_PORT}
    return ProcessSpec(name, f"services.{role}", {**environment, **own})

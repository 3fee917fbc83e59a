"""What the tests of the gateway's side ask for, and what they measure it with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.generation import GenerationSpec, Timeline
from gateway.mesh.settings import MeshSettings, PipelineChoice
from gateway.routing.plan import Plan
from pdd.catalog.base import Role
from pdd.identity import Instance
from pdd.sampling import SamplingParams

GATEWAY = Instance("gateway-0", 77)
PROMPT, OUTPUT = 70, 80  # tokens


class Observed:
    """A MeshObserver that remembers."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.joins: list[Role] = []
        self.handoffs: list[Timeline] = []
        self.scored: list[tuple[int, int]] = []  # (scored, agreed) of each extend that was scored
        self.dropped: dict[str, int] = {}
        self.unanswered: list[str] = []
        self.connected: dict[str, bool] = {}

    def queued(self, waited_s: float) -> None:
        pass

    def planned(self, plan: Plan, prompt_tokens: int) -> None:
        self.plans.append(plan)

    def joined(self, role: Role) -> None:
        self.joins.append(role)

    def handoff_done(self, timeline: Timeline) -> None:
        self.handoffs.append(timeline)

    def tokens_scored(self, scored: int, agreed: int) -> None:
        self.scored.append((scored, agreed))

    def events_dropped(self, instance_id: str, count: int) -> None:
        self.dropped[instance_id] = self.dropped.get(instance_id, 0) + count

    def abort_unanswered(self, instance_id: str) -> None:
        self.unanswered.append(instance_id)

    def link_changed(self, instance_id: str, connected: bool) -> None:
        self.connected[instance_id] = connected


def mesh_settings(**values: Any) -> MeshSettings:
    return MeshSettings(
        **{
            "pipeline": PipelineChoice.RELAY,
            "instance_poll_s": 0.02,
            "reconnect_max_s": 0.1,
            "closing_timeout_s": 5.0,
            "agreement_sample": 1.0,
            **values,
        }
    )


def spec(
    prompt_tokens: int = PROMPT, max_tokens: int = OUTPUT, text: int = 0, *, streaming: bool = True, **sampling: Any
) -> GenerationSpec:
    """A greedy request that goes on to its last token; `text` chooses one of many prompts."""
    params = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)
    prompt = tuple((7 * position + position // 5 + text) % 1000 for position in range(prompt_tokens))
    return GenerationSpec(prompt, replace(params, **sampling), "test", streaming)

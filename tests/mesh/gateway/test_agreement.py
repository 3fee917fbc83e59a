"""Agreement: what main says of the relay's tokens is counted, told, and logged where it should not be so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from pdd.engine.base import Payload
from pdd.engine.sim.digest import Noise
from pdd.engine.sim.model import SimConfig, SimModel
from tests.mesh.gateway.asking import Observed, spec
from tests.mesh.gateway.moments import answers, asked, mesh_spec
from tests.mesh.gateway.site import PACED, collect, running_site

WARNING = "main would have chosen other tokens than a relay of the same engine"


class FlippingModel(SimModel):
    """Loses one bit between the verified copy and the device."""

    def import_kv(self, slot: int, payloads: Sequence[Payload]) -> None:
        changed = bytearray(payloads[1])
        changed[60] ^= 0x10
        super().import_kv(slot, (payloads[0], bytes(changed), *payloads[2:]))


def noisy(config: SimConfig) -> SimModel:
    """Chooses otherwise at near ties, as another kernel would."""
    return SimModel(replace(config, noise=Noise(0.5, seed=3)))


def noisy_chip(config: SimConfig) -> SimModel:
    """The same, and says that it is another kind of device."""
    return SimModel(replace(config, noise=Noise(0.5, seed=3), device_dtype="f32"))


@pytest.mark.parametrize("handoff", ["one_shot", "catch_up"])
def test_equal_engines_agree_on_every_token(handoff: str) -> None:
    observed = Observed()
    with capture_logs() as logs:
        (found,) = answers(mesh_spec(handoff=handoff), [asked()], observed)
    assert found.end is not None
    timeline = found.end.timeline
    # 100 tokens leave a tail of 4 over the blocks, so that index 0 can be scored too.
    assert timeline.scored_tokens == timeline.agreed_tokens == timeline.eager_tokens > 20
    assert sum(scored for scored, _ in observed.scored) == timeline.scored_tokens
    assert len(observed.scored) == sum(span.name == "extend" for span in timeline.spans)
    assert WARNING not in [line["event"] for line in logs]


def test_only_a_sample_of_the_requests_is_scored() -> None:
    found = answers(mesh_spec(agreement_sample=0.5), [asked(text=text) for text in range(6)])
    scored = [one.end.timeline.scored_tokens > 0 for one in found if one.end is not None]
    assert scored.count(True) == 3
    again = answers(mesh_spec(agreement_sample=0.5), [asked(text=text) for text in range(6)])
    assert [one.end.timeline.scored_tokens > 0 for one in again if one.end is not None] == scored


def test_direct_answers_have_no_relay_to_agree_with() -> None:
    (found,) = answers(mesh_spec(pipeline="direct"), [asked()])
    assert found.end is not None
    assert found.end.timeline.scored_tokens == 0


@pytest.mark.parametrize(
    ("model", "most", "warned"),
    [(FlippingModel, 0.1, True), (noisy, 0.99, True), (noisy_chip, 0.99, False)],
    ids=["a flipped bit", "another kernel", "another chip"],
)
async def test_tokens_that_main_would_not_have_chosen_are_told(
    model: Callable[[SimConfig], SimModel], most: float, warned: bool
) -> None:
    async with running_site(PACED, main_model=model, handoff="one_shot") as site:
        with capture_logs() as logs:
            answer = await collect(site.mesh, spec())
        timeline = answer.end.timeline
        assert timeline.scored_tokens >= 10
        assert timeline.agreed_tokens <= most * timeline.scored_tokens
        warnings = [line for line in logs if line["event"] == WARNING]
        assert bool(warnings) is warned
        for line in warnings:
            assert (line["relay"], line["main"]) == ("relay-0", "main-0")
            assert (line["scored"], line["agreed"]) == (timeline.scored_tokens, timeline.agreed_tokens)
        assert len(answer.tokens) == 80  # what was shown stands, and main goes on from it
        await site.until_free()

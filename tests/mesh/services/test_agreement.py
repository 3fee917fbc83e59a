"""What main says of the ids it is told: it agrees with all of them, unless its KV is not what prefill made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pdd.engine.base import Payload
from pdd.engine.sim.model import SimModel
from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from services.main.rules import main_rules
from tests.mesh.services.gateways import attached_decoder, attached_prefill
from tests.mesh.services.instances import BUDGET_BLOCKS, FAST, greedy, prompt, running_decoder, running_prefill

REQUEST = RequestId(5, 1)
IDS = prompt(40)


class FlippingModel(SimModel):
    """Loses one bit on the way from the verified copy to the device."""

    def import_kv(self, slot: int, payloads: Sequence[Payload]) -> None:
        changed = bytearray(payloads[1])
        changed[60] ^= 0x10
        super().import_kv(slot, (payloads[0], bytes(changed), *payloads[2:]))


@pytest.mark.parametrize(("kind", "least", "most"), [(SimModel, 30, 30), (FlippingModel, 0, 3)], ids=["whole", "flipped"])
async def test_one_bit_that_differs_is_seen_in_the_agreement(kind: type[SimModel], least: int, most: int) -> None:
    log, sampling = continuation(IDS, 40, ignore_eos=True), greedy(40)
    async with (
        running_prefill(FAST) as prefill,
        running_decoder("main-0", main_rules, kind(FAST), BUDGET_BLOCKS) as main,
        attached_prefill(prefill.address) as to_prefill,
        attached_decoder(main.address) as to_main,
    ):
        await to_main.admit(1, REQUEST, IDS, sampling)
        await to_prefill.start(1, REQUEST, IDS, sampling, [main.target])
        await to_main.extend(1, 0, log[:12], score=True)
        await to_main.extend(1, 12, log[12:30], then_decode=True, score=True)
        told = await to_main.until_closed(1)
    scored, agreed = told.agreement
    assert scored == 30
    assert least <= agreed <= most
    assert (told.ids == log[30:]) is (agreed == scored)

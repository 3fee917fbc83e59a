"""A handoff as it would be if the eager tokens' KV were shipped instead of their ids. Called by `bench.handoff`.

No part of the mesh does this. It is reckoned at the engine's level, in virtual time, with the mesh's own models: the link of
`virtual.line`, charged the bytes that the KV declares, and the step costs of `pdd.engine.sim.cost`. What is left out favours
this way: no offer, no acknowledgement, no credit, no checksums, no commands, no other transfer on the line.

    relay   learns at once that main is ready, ends the step under way, copies the KV of all eager tokens out of the device, over
            its interconnect, and puts it on the line in frames of 1 MiB
    main    goes on with steps for its other users; the first to start once all frames are there imports the KV, the prompt's
            with it as in the mesh, over the interconnect again, and makes the first token from the last id, which came along
    line    carries a frame of tokens a step back to the gateway
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from random import Random

from bench.handoff_setting import Sample, Setting
from pdd.engine.sim.cost import StepShape, step_cost_s
from pdd.kv.wire import TARGET_FRAME_BYTES
from virtual.charge import FRAME_BYTES, Charge
from virtual.line import LineFlow, Link
from virtual.link import Flow

TOKENS_FRAME = Charge("tokens", 40, 40 + FRAME_BYTES)
BYSTANDER_TOKENS = 140  # of KV, each
SETTLE_S = 0.5


async def ship_kv(setting: Setting, token_bytes: int, seed: int) -> Sample:
    """One handoff; `token_bytes` is the KV of one token."""
    return await _Shipment(setting, setting.eager_tokens * token_bytes, seed).run()


class _Shipment:
    def __init__(self, setting: Setting, kv_bytes: int, seed: int) -> None:
        """Must be made on a running event loop."""
        self._setting = setting
        self._kv_bytes = kv_bytes
        self._random = Random(f"{seed} steps")
        self._up, self._down = Link("a", "b", setting.link, lambda name: Random(f"{seed} {name}")).lines("a")
        self._up_flow: LineFlow = Flow("kv")
        self._down_flow: LineFlow = Flow("tokens")
        self._time = asyncio.get_running_loop().time
        self._missing_bytes = kv_bytes
        self._whole = asyncio.Event()
        self._imported = False
        self._others_s: list[float] = []  # when the gateway got the others' tokens
        self._first_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> Sample:
        step_s = self._setting.step_s
        main = asyncio.create_task(self._main())
        await asyncio.sleep(SETTLE_S)
        began_s = self._time()
        await asyncio.sleep(self._random.uniform(0, step_s))
        last_s = self._time()
        await asyncio.sleep(self._kv_bytes / self._setting.hardware.interconnect_bytes_s)
        self._ship()
        first_s = await self._first_s
        await asyncio.sleep(step_s + self._setting.link.jitter_ms / 1000)
        main.cancel()
        felt_s = first_s - began_s + step_s
        return Sample(
            mode="kv",
            eager_tokens=self._setting.eager_tokens,
            latency_s=first_s - began_s,
            raw_gap_s=first_s - last_s,
            user_gap_s=None,
            bystander_gap_s=self._largest_gap_s(began_s, began_s + felt_s),
            bystander_before_s=self._largest_gap_s(began_s - felt_s, began_s),
        )

    async def _main(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._setting.step_s))
        while True:
            if not self._setting.bystanders:
                await self._whole.wait()  # there is nothing else to make steps for
            imports = self._whole.is_set() and not self._imported
            await asyncio.sleep(self._step_s(imports))
            self._imported = self._imported or imports
            self._down.send(self._down_flow, TOKENS_FRAME, partial(self._shown, imports))

    def _step_s(self, imports: bool) -> float:
        setting = self._setting
        rows, held = setting.bystanders, setting.bystanders * BYSTANDER_TOKENS
        if imports or self._imported:
            rows, held = rows + 1, held + setting.prompt_tokens + setting.eager_tokens
        imported_bytes = setting.prompt_tokens * setting.model.kv_bytes + self._kv_bytes if imports else 0
        return step_cost_s(StepShape(rows, held, held, imported_bytes), setting.hardware, setting.model)

    def _ship(self) -> None:
        for at in range(0, self._kv_bytes, TARGET_FRAME_BYTES):
            size = min(TARGET_FRAME_BYTES, self._kv_bytes - at)
            self._up.send(self._up_flow, Charge("kv", size, size + FRAME_BYTES), partial(self._arrived, size))

    def _arrived(self, size: int) -> None:
        self._missing_bytes -= size
        if not self._missing_bytes:
            self._whole.set()

    def _shown(self, first: bool) -> None:
        if self._setting.bystanders:
            self._others_s.append(self._time())
        if first:
            self._first_s.set_result(self._time())

    def _largest_gap_s(self, start_s: float, end_s: float) -> float:
        """Between two of the others' tokens, of the gaps that ended in that time."""
        pairs = itertools.pairwise(self._others_s)
        return max((after - before for before, after in pairs if start_s < after <= end_s), default=0.0)

"""A handoff as it would be if the eager tokens' KV were shipped instead of their ids. Called by `bench.handoff`.

No part of the mesh does this. It is reckoned at the engine's level, in virtual time, with the mesh's own models: the link of
`virtual.line`, charged the bytes that the KV declares, and the step costs of `pdd.engine.sim.cost`. What is left out favours
this way: no offer, no acknowledgement, no credit, no checksums, no commands, no other transfer on the line.

    relay   learns at once that main is ready, ends the step under way, copies the KV of all eager tokens out of the device over its
            interconnect, and puts it on the line in frames of 1 MiB
    main    goes on with steps for its other users; the first step to start once all frames are there imports the KV, which takes
            its bytes over the interconnect, and makes the first token from the last id, which came along
    line    back to the gateway carries a frame of tokens a step
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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


async def ship_kv(setting: Setting, token_bytes: int, seed: int) -> Sample:
    """One handoff; `token_bytes` is the KV of one token."""
    return await _Shipment(setting, setting.eager_tokens * token_bytes, seed).run()


class _Shipment:
    def __init__(self, setting: Setting, kv_bytes: int, seed: int) -> None:
        """Must be made on a running event loop; its time 0 is when main has the prompt's KV."""
        self._setting = setting
        self._kv_bytes = kv_bytes
        self._random = Random(f"{seed} steps")
        self._up, self._down = Link("a", "b", setting.link, lambda name: Random(f"{seed} {name}")).lines("a")
        self._time = asyncio.get_running_loop().time
        self._frames_left = -1
        self._shown_s: list[float] = []  # when the gateway got each of main's frames
        self._first_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> Sample:
        main = asyncio.create_task(self._main())
        await asyncio.sleep(4 * self._setting.step_s)  # the others' tokens have long been under way
        began_s = self._time()
        await asyncio.sleep(self._random.uniform(0, self._setting.step_s))
        last_s = self._time()
        await asyncio.sleep(self._copy_s)
        self._ship()
        first_s = await self._first_s
        await asyncio.sleep(4 * self._setting.step_s)
        main.cancel()
        gap_s = max(after - before for before, after in zip(self._shown_s, self._shown_s[1:]) if after > began_s)
        return Sample("kv", self._setting.eager_tokens, first_s - began_s, first_s - last_s, None, gap_s)

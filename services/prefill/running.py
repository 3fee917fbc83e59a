"""A job under way, with all it holds: a sequence in the engine, pinned blocks, a feed, a sender per target, a lease's timer.

Made by the session for each StartPrefill; fed by the worker with what the engine reports. Carries out what `job` decides, and is
forgotten by both once the job has released everything. Its calls return at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial

from pdd.engine.base import Aborted, Engine, Failed, KvBlocks, Prefilled, SeqId, TokenOut
from pdd.identity import Instance
from pdd.kv.hashing import chain_hashes
from pdd.kv.store import BlockStore
from pdd.request_proto import RequestSpec
from pdd.transfer.feed import BlockFeed
from pdd.transfer.outbound import OfferedKv, TransferReport
from pdd.v1 import prefill_pb2
from services.prefill import events
from services.prefill.commands import Target
from services.prefill.job import AbortSeq, Action, CancelTransfers, CompleteFeed, FailFeed, Job, Unpin
from services.prefill.targets import TargetChannels
from services.prefill.transfer import PrefillGaveUp, TransferFailure, transfer

TransferTask = asyncio.Task[TransferReport | TransferFailure]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the jobs of a worker share."""

    instance: Instance
    engine: Engine
    store: BlockStore
    channels: TargetChannels
    seqs: Iterator[SeqId]  # fresh within the engine
    running: MutableMapping[SeqId, RunningJob]  # every job that holds something


class RunningJob:
    """Raises NoMemory when made, where the prompt's blocks don't fit beside what is pinned; then it holds nothing.

    `emit` takes each event for the gateway; `ended` is called once, after the last one.
    """

    def __init__(
        self,
        parts: Parts,
        handle: int,
        spec: RequestSpec,
        targets: tuple[Target, ...],
        emit: Callable[[prefill_pb2.PrefillEvent], None],
        ended: Callable[[], None],
    ) -> None:
        loop, layout = asyncio.get_running_loop(), parts.engine.layout
        hashes = chain_hashes(spec.prompt, layout.block_tokens, spec.salt)
        self._expires_s = loop.time() + spec.lease_s
        self._parts = parts
        self._spec = spec
        self._emit = emit
        self._ended = ended
        self._job = Job(handle, len(spec.prompt), (target.id for target in targets))
        self._feed = BlockFeed()
        self._first: TokenOut | None = None
        self._pinned = parts.store.reserve(spec.request, len(hashes), layout.block_bytes, self._expires_s)
        self._seq = next(parts.seqs)
        parts.running[self._seq] = self
        parts.engine.prefill(self._seq, spec.prompt, spec.sampling)
        # The offers leave at once, so that their round trips hide behind the prefill.
        offer = OfferedKv(spec.request, parts.instance, layout, len(spec.prompt), hashes)
        self._sending = {target.id: self._send(target.id, target.kv_address, offer) for target in targets}
        self._expiry = loop.call_at(self._expires_s, self._expire)

    @property
    def transferring(self) -> bool:
        return self._job.transferring

    @property
    def sending(self) -> tuple[TransferTask, ...]:
        """The transfers under way."""
        return tuple(self._sending.values())

    # ── the gateway ──

    def abort(self) -> None:
        self._carry_out(self._job.abort())

    def fail(self, code: events.ErrorCode, text: str) -> None:
        self._carry_out(self._job.fail(code, text))

    # ── the engine ──

    def made(self, event: KvBlocks) -> None:
        for offset, payload in enumerate(event.payloads):
            self._parts.store.put(self._pinned, event.first_block + offset, payload)
        if self._feed.error is None:
            self._feed.append(event.payloads)

    def sampled(self, first: TokenOut) -> None:
        self._first = first

    def prefilled(self, event: Prefilled) -> None:
        # An end of sequence is no token of the answer, so the engine reports none; prefill's report needs one all the same.
        first = self._first or TokenOut(self._seq, 0, self._spec.sampling.eos_ids[0])
        self._carry_out(self._job.prefilled(event, first))

    def engine_closed(self, event: Failed | Aborted) -> None:
        self._carry_out(self._job.engine_closed(event))

    # ── the transfers ──

    def _send(self, target: str, address: str, offer: OfferedKv) -> TransferTask:
        wanted, lease_s = partial(self._wanted, target), self._spec.lease_s
        running = transfer(self._parts.channels, address, offer, self._feed, lease_s, wanted, self._renew)
        task = asyncio.get_running_loop().create_task(running, name=f"transfer {offer.request} to {target}")
        # A callback and not a line at the task's end: a task that is cancelled before it has started never runs.
        task.add_done_callback(partial(self._transfer_over, target))
        return task

    def _wanted(self, target: str, missing_blocks: int, missing_bytes: int) -> None:
        self._carry_out(self._job.wanted(target, missing_blocks, missing_bytes))

    def _transfer_over(self, target: str, task: TransferTask) -> None:
        del self._sending[target]
        if task.cancelled():
            self._carry_out(self._job.transfer_cancelled(target))
            return
        match task.result():
            case TransferReport() as report:
                self._carry_out(self._job.transfer_done(target, report))
            case TransferFailure(reason, message):
                self._carry_out(self._job.transfer_failed(target, reason, message))

    # ── shared ──

    def _renew(self) -> None:
        """A transfer moves: the lease bounds silence, not the whole of it."""
        if self._seq in self._parts.running:
            self._expires_s = asyncio.get_running_loop().time() + self._spec.lease_s
            self._parts.store.renew(self._pinned, self._expires_s)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._expires_s:  # renewed since; moving the timer with every frame would cost more
            self._expiry = loop.call_at(self._expires_s, self._expire)
            return
        lease = f"the lease of {self._spec.lease_s:g} s ran out with no transfer moving"
        text = f"{lease}: give it a longer one, or retry when prefill is less loaded"
        self.fail(events.LEASE_EXPIRED, text)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case prefill_pb2.PrefillEvent():
                    self._emit(action)
                case AbortSeq():
                    self._parts.engine.abort(self._seq)
                case CompleteFeed(first_token, final):
                    self._feed.complete(first_token, final)
                case FailFeed(message):
                    self._feed.fail(PrefillGaveUp(message))
                case CancelTransfers():
                    for task in self.sending:
                        task.cancel()
                case Unpin():
                    self._let_go()
        if self._seq not in self._parts.running:
            self._ended()

    def _let_go(self) -> None:
        self._expiry.cancel()
        self._parts.store.release(self._pinned)
        del self._parts.running[self._seq]

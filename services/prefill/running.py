"""A job under way, with all it holds: a sequence in the engine, its blocks, a feed, a sender per target, a lease's timer.

Made by the session for each StartPrefill; fed by the worker with what the engine reports. Carries out what `job` decides, and is
forgotten by both once the job has released everything. Its calls return at once.

Blocks that are cached go to the targets at once. Where another job makes blocks that are lacking, this one joins it: it computes
the rest once those are there, or what is lacking by then once that job makes no more. A job only ever waits for older ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial

from pdd.engine.base import Aborted, Engine, Failed, KvBlocks, Prefilled, SeqId, TokenOut
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache, prefix_of
from pdd.kv.store import NoMemory
from pdd.request_proto import RequestSpec
from pdd.tracing.tracer import Tracer
from pdd.transfer.base import Refusal
from pdd.transfer.feed import BlockFeed
from pdd.transfer.outbound import OfferedKv, TransferReport
from pdd.v1 import prefill_pb2
from services.prefill import events
from services.prefill.blocks import PromptBlocks
from services.prefill.commands import Target
from services.prefill.job import AbortSeq, Action, CancelTransfers, CompleteFeed, FailFeed, Job, Unpin
from services.prefill.links import Links
from services.prefill.observer import PrefillObserver, TransferOutcome
from services.prefill.targets import TargetChannels
from services.prefill.transfer import PrefillGaveUp, TransferFailure, transfer

TransferTask = asyncio.Task[TransferReport | TransferFailure]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the jobs of a worker share."""

    instance: Instance
    engine: Engine
    cache: PrefixCache
    channels: TargetChannels
    links: Links
    observer: PrefillObserver
    seqs: Iterator[SeqId]  # fresh within the engine
    running: MutableMapping[SeqId, RunningJob]  # every job that holds something, oldest first
    tracer: Tracer | None = None


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
        prefix = prefix_of(spec.prompt, layout.block_tokens, spec.salt)
        self._began_s = loop.time()
        self._made_s = self._began_s  # when the last block was, once it is
        self._expires_s = self._began_s + spec.lease_s
        self._parts = parts
        self._spec = spec
        self._emit = emit
        self._ended = ended
        self._job = Job(handle, len(spec.prompt), (target.id for target in targets))
        self._feed = BlockFeed()
        self._first: TokenOut | None = None
        self._roles = {target.id: target.role for target in targets}
        self._dropped: dict[str, str] = {}  # why, by target whose transfer was
        self._sent_bytes: dict[str, int] = {}  # by target whose transfer has ended
        self._blocks = PromptBlocks(parts.cache, spec.request, prefix, len(spec.prompt), layout)
        self._joined: tuple[RunningJob, int] | None = None  # whose blocks this job waits for, and up to how many
        self._joiners: list[RunningJob] = []
        self._seq = next(parts.seqs)
        self._given = False  # to the engine
        try:
            self._compute_or_join()
        except NoMemory:
            self._blocks.release()
            raise
        parts.running[self._seq] = self
        # The offers leave at once, so that their round trips hide behind the prefill.
        offer = OfferedKv(spec.request, parts.instance, layout, len(spec.prompt), prefix.hashes)
        self._sending = {target.id: self._send(target.id, target.kv_address, offer) for target in targets}
        self._expiry = loop.call_at(self._expires_s, self._expire)

    @property
    def transferring(self) -> bool:
        return self._job.transferring

    @property
    def queued_tokens(self) -> int:
        """Tokens to be computed that the engine has not been given yet; 0 where it has been."""
        return 0 if self._joined is None else len(self._spec.prompt) - self._joined[1] * self._parts.engine.layout.block_tokens

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
        self._blocks.add(event.first_block, event.payloads)
        if self._feed.error is None:
            self._feed.append(event.payloads)
        for target in self._sending:
            self._drop_excess(target)
        for joiner in tuple(self._joiners):
            joiner.joined_made()

    def sampled(self, first: TokenOut) -> None:
        self._first = first

    def prefilled(self, event: Prefilled) -> None:
        # An end of sequence is no token of the answer, so the engine reports none; prefill's report needs one all the same.
        first = self._first or TokenOut(self._seq, 0, self._spec.sampling.eos_ids[0])
        actions = self._job.prefilled(event, first)
        self._made_s = asyncio.get_running_loop().time()
        waited_s = max(0.0, self._made_s - self._began_s - event.compute_s)
        self._parts.observer.prefilled(event, len(self._spec.prompt), waited_s)
        self._makes_no_more(keep=True)
        self._carry_out(actions)

    def engine_closed(self, event: Failed | Aborted) -> None:
        actions = self._job.engine_closed(event)
        self._makes_no_more(keep=isinstance(event, Aborted))  # what a broken engine made last is not to be trusted
        self._carry_out(actions)

    # ── its blocks and other jobs' ──

    def joined_made(self) -> None:
        """The joined job has made more blocks: go on once all are there that it could give."""
        self._renew()
        if self._joined is not None and self._joined[0]._blocks.has(self._joined[1]):
            self.leave()
            self._go_on()

    def leave(self) -> None:
        """Wait no longer."""
        if self._joined is not None:
            self._joined[0]._joiners.remove(self)
            self._joined = None

    def _compute_or_join(self) -> None:
        """Raises NoMemory."""
        self._pin_cached()
        best, most = None, self._blocks.cached
        for other in self._parts.running.values():
            if other is self:
                break
            common = self._blocks.common(other._blocks) if other._job.computing else 0
            if common > most:
                best, most = other, common
        if best is not None:
            best._blocks.keep()
            self._pin_cached()
            if not best._blocks.has(most):
                self._joined = (best, most)
                best._joiners.append(self)
                return
        self._blocks.reserve(self._expires_s)
        self._given = True
        self._parts.engine.prefill(self._seq, self._spec.prompt, self._spec.sampling, self._blocks.source())

    def _go_on(self) -> None:
        try:
            self._compute_or_join()
        except NoMemory as error:
            self._carry_out(self._job.fail(events.OVERLOADED, str(error)))

    def _never_computed(self) -> None:
        if self._job.computing:  # it may have been aborted twice by now
            self.engine_closed(Aborted(self._seq))

    def _pin_cached(self) -> None:
        """What is cached goes to the targets at once."""
        if payloads := self._blocks.pin(self._expires_s):
            self._feed.append(payloads)

    def _makes_no_more(self, keep: bool) -> None:
        if keep:
            self._blocks.keep()
        for joiner in tuple(self._joiners):
            joiner.leave()
            joiner._go_on()

    # ── the transfers ──

    def _send(self, target: str, address: str, offer: OfferedKv) -> TransferTask:
        wanted, sent = partial(self._wanted, target), partial(self._sent_bytes.__setitem__, target)
        link, lease_s = self._parts.links.to(target), self._spec.lease_s
        running = transfer(self._parts.channels, address, offer, self._feed, lease_s, wanted, self._renew, sent, link)
        task = asyncio.get_running_loop().create_task(running, name=f"transfer {offer.request} to {target}")
        # A callback and not a line at the task's end: a task that is cancelled before it has started never runs.
        task.add_done_callback(partial(self._transfer_over, target))
        return task

    def _wanted(self, target: str, missing_blocks: int, missing_bytes: int) -> None:
        self._carry_out(self._job.wanted(target, missing_blocks, missing_bytes))
        self._drop_excess(target)

    def _drop_excess(self, target: str) -> None:
        """Give a transfer up whose blocks have made too much wait for its link; what is made is cached for another time."""
        excess = self._parts.links.excess(target)
        if excess is not None and target not in self._dropped:
            self._dropped[target] = excess
            self._sending[target].cancel()

    def _transfer_over(self, target: str, task: TransferTask) -> None:
        del self._sending[target]
        outcome, actions = self._outcome(target, task)
        self._parts.observer.transfer_ended(target, self._roles[target], outcome, self._sent_bytes.pop(target, 0))
        self._carry_out(actions)

    def _outcome(self, target: str, task: TransferTask) -> tuple[TransferOutcome, list[Action]]:
        if task.cancelled():
            if target in self._dropped:
                return TransferOutcome.DROPPED, self._job.transfer_failed(target, Refusal.BACKLOG, self._dropped[target])
            return TransferOutcome.CANCELLED, self._job.transfer_cancelled(target)
        match task.result():
            case TransferReport() as report:
                self._parts.observer.committed(target, report, asyncio.get_running_loop().time() - self._made_s)
                return TransferOutcome.USED, self._job.transfer_done(target, report)
            case TransferFailure(reason, message):
                outcome = TransferOutcome.FAILED if reason is None else TransferOutcome.REFUSED
                return outcome, self._job.transfer_failed(target, reason, message)

    # ── shared ──

    def _renew(self) -> None:
        """A transfer moves: the lease bounds silence, not the whole of it."""
        if self._seq in self._parts.running:
            self._expires_s = asyncio.get_running_loop().time() + self._spec.lease_s
            self._blocks.renew(self._expires_s)

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
                case AbortSeq() if self._given:
                    self._parts.engine.abort(self._seq)
                case AbortSeq():
                    self.leave()
                    # In its own time, as the engine's answer would come: the actions after this one come first.
                    asyncio.get_running_loop().call_soon(self._never_computed)
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
        self._blocks.release()
        del self._parts.running[self._seq]

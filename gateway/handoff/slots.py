"""Which of this gateway's requests may have a slot of one main now: as many handoffs at once as it has free slots.

Owned by `gateway.mesh.decode_link`, one for each stream to a main. Pure. A report of main's load does not cover what is on its
way there, so each request that was told to go ahead counts on top of it until main says that it has it. Those that find no slot
wait in the order in which they asked; their relays go on meanwhile, and may well finish first.

The slots that other gateways are about to take are not known here: where they rush, a request may have to wait at main after all.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.mode import DecoderLoad


def full(load: DecoderLoad) -> bool:
    """Whether one more request would have to wait for a slot."""
    return load.running + load.waiting >= load.slots


class SlotBook:
    def __init__(self) -> None:
        self._load: DecoderLoad | None = None
        self._going: set[int] = set()  # handles that may take a slot, and have not yet been seen in one
        self._queue: dict[int, None] = {}  # handles that wait, first come first

    def report(self, load: DecoderLoad) -> None:
        """Main says how busy it is."""
        self._load = load

    def ask(self, handle: int) -> DecoderLoad | None:
        """Main's load as the request is to see it: full where it has to wait for `grant`. None where main has told nothing."""
        self._queue[handle] = None
        if next(iter(self._queue)) == handle and (granted := self.grant()) is not None:
            return granted[1]
        load = self._with_those_going()
        # With a free slot here, those who asked before are about to be granted theirs: behind them it is full all the same.
        return None if load is None else replace(load, waiting=max(load.waiting, load.slots - load.running))

    def grant(self) -> tuple[int, DecoderLoad | None] | None:
        """Whose turn it is, and the load as it is to see it; None where nobody waits or no slot is free. Ask until None."""
        if not self._queue:
            return None
        load = self._with_those_going()
        if load is not None and full(load):
            return None
        handle = next(iter(self._queue))
        del self._queue[handle]
        self._going.add(handle)
        return handle, load

    def leave(self, handle: int) -> None:
        """Main counts the request itself from here on, or it has ended."""
        self._going.discard(handle)
        self._queue.pop(handle, None)

    def _with_those_going(self) -> DecoderLoad | None:
        return None if self._load is None else replace(self._load, waiting=self._load.waiting + len(self._going))

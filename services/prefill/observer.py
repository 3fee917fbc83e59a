"""What prefill tells whoever measures it. Called on the event loop; must return at once and never raise."""

from __future__ import annotations

import enum
from typing import Protocol

from pdd.engine.base import Prefilled
from pdd.transfer.outbound import TransferReport


class TransferOutcome(enum.Enum):
    """How a transfer ended, as its sender knows it."""

    USED = "used"  # committed
    CANCELLED = "cancelled"  # by its gateway
    DROPPED = "dropped"  # too much waited for the link
    REFUSED = "refused"  # by the receiver
    FAILED = "failed"  # the receiver was lost, or prefill itself failed


class PrefillObserver(Protocol):
    def prefilled(self, event: Prefilled, prompt_tokens: int, waited_s: float) -> None:
        """Index 0 is sampled. `waited_s` is the time since the request came in which nothing was computed for it."""

    def committed(self, target: str, report: TransferReport, behind_s: float) -> None:
        """A receiver has all blocks, `behind_s` after the last of them was made."""

    def transfer_ended(self, target: str, role: str, outcome: TransferOutcome, sent_bytes: int) -> None:
        """However it ended: so much of KV was put on the link to `target`, which is a relay or a main as `role` says."""


class UnobservedPrefill:
    """Measures nothing."""

    def prefilled(self, event: Prefilled, prompt_tokens: int, waited_s: float) -> None:
        pass

    def committed(self, target: str, report: TransferReport, behind_s: float) -> None:
        pass

    def transfer_ended(self, target: str, role: str, outcome: TransferOutcome, sent_bytes: int) -> None:
        pass

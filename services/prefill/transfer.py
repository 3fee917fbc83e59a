"""One block transfer to one target as a task, and what it came to as data. Started by the session, at once with the prefill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdd.telemetry import get_logger
from pdd.transfer.base import Refusal, TransferLost, TransferRefused
from pdd.transfer.feed import BlockFeed
from pdd.transfer.goodput import LinkMeter
from pdd.transfer.outbound import OfferedKv, TransferReport
from pdd.transfer.sender import send
from services.prefill.targets import TargetChannels

log = get_logger(__name__)


class PrefillGaveUp(Exception):
    """Put into a feed whose missing blocks will never come."""


@dataclass(frozen=True, slots=True)
class TransferFailure:
    reason: Refusal | None  # None: the peer was lost, or the fault is on this side
    message: str


async def transfer(
    channels: TargetChannels,
    address: str,
    offer: OfferedKv,
    feed: BlockFeed,
    lease_s: float,
    on_wanted: Callable[[int, int], None],
    on_progress: Callable[[], None],
    on_end: Callable[[int], None],
    link: LinkMeter,
) -> TransferReport | TransferFailure:
    """Send `feed` to the decoder at `address`. Raises CancelledError alone, once the receiver has stopped writing."""
    try:
        async with channels.use(address) as channel:
            return await send(
                channel, offer, feed, on_wanted=on_wanted, on_progress=on_progress, on_end=on_end, lease_s=lease_s, link=link
            )
    except TransferRefused as refusal:
        return TransferFailure(refusal.reason, f"{address} refused {offer.request}: {refusal}")
    except TransferLost as lost:
        return TransferFailure(None, f"{address} was lost with {offer.request}: {lost}")
    except PrefillGaveUp as gave_up:
        return TransferFailure(None, str(gave_up))
    except Exception as error:
        # A fault in one transfer is that transfer's failure: the other target and everyone else's go on.
        log.exception("a transfer broke", request=str(offer.request), address=address)
        return TransferFailure(None, f"the transfer of {offer.request} to {address} broke: {error!r}; see prefill's log")

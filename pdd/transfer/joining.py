"""Which transfer under way brings blocks that an offered one lacks, so that no block crosses twice. Pure.

Asked by `receiver` before it grants an offer, and again whenever a transfer has ended. A transfer only ever waits for ones that
were accepted before it, so they can't wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from pdd.kv.hashing import common_blocks
from pdd.transfer.inbound import Inbound


def joined_by(offered: Inbound, accepted: Iterable[Inbound]) -> Inbound | None:
    """The one to wait for: of those accepted before `offered`, in their order, the one that brings most of what it lacks.

    None where none does, or where the cache keeps nothing: then there is nothing to be had from others.
    """
    if offered.cache.limit_bytes == 0:
        return None
    best, most = None, offered.cache.match(offered.prefix)
    for other in accepted:
        if other is offered:
            break
        common = common_blocks(offered.prefix.hashes, other.prefix.hashes) if other.under_way else 0
        if common > most:
            best, most = other, common
    return best

"""Whether the prefix catalog has what an instance caches. Pure; called by `checks`.

An instance tells of changes in batches, so the two differ for a moment after each change. They are at odds only where the catalog
stood still while it differed.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdd.doctor.facts import InstanceFacts
from pdd.doctor.findings import Check, Finding, warning


def cache_findings(one: InstanceFacts) -> Iterator[Finding]:
    looks, id = one.cache_looks, one.registration.instance.id
    if not looks or looks[-1].agrees or len({look.published for look in looks}) > 1:
        return
    published, (stored_count, _), (count, held_digest) = looks[-1].published, looks[-1].stored, looks[-1].held
    if published is None:
        yield warning(
            Check.CACHE_UNPUBLISHED,
            id,
            f"it caches {count} blocks, and the prefix catalog knows of none: hits on it are missed",
            "look for `prefix catalog is away` in its log; a main's way to Redis leads through the link",
        )
    elif looks[-1].stored != (published.count, published.digest):
        yield warning(
            Check.CACHE_MISMATCH,
            id,
            f"the prefix catalog says {published} of it and holds {stored_count} blocks of another digest",
            "does someone else write to pdd:cached:* in this Redis? Where it does not mend itself, restart the instance",
        )
    else:
        yield warning(
            Check.CACHE_MISMATCH,
            id,
            f"it caches {count} blocks, digest {held_digest:016x}; the prefix catalog says {published} and stays at it",
            "look for `prefix catalog is away` in its log; where there is nothing, restart it",
        )

"""What a request may be called by its client, for the logs of both sides. Used by the client and the gateway. Pure."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[\x21-\x7e]{1,128}")


def is_label(text: str) -> bool:
    """1 to 128 visible ASCII characters: fit for a header, gRPC's metadata and a line of a log."""
    return _LABEL.fullmatch(text) is not None

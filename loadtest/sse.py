"""Server-sent events out of the bytes as they come. Pure; called by `http_api`.

An event counts as arrived with the read that brought its last byte: nothing is held back to fill a buffer.
"""

from __future__ import annotations


class EventReader:
    """Feed it what was read; it gives the payloads of the `data:` lines that are whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads in order, without their `data:`. Other lines of an event say nothing to us."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

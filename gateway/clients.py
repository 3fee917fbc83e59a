"""What both public APIs make of a client: the label of its request, and that it may go away.

Used by the HTTP and the gRPC API. Owns nothing; never speaks to a client itself.
"""

from __future__ import annotations

from collections.abc import Callable

from pdd.label import is_label


class ClientLeft(Exception):
    """The client went away, or was cut off: nobody is there to get an error."""


def label_or_new(given: str, new_id: Callable[[], str]) -> str:
    """The client's x-request-id where it is fit to be logged and sent back, else a new one."""
    return given if is_label(given) else new_id()

"""Errors of the RPC shell that a person can act on."""

from __future__ import annotations


class StartupError(Exception):
    """The process can't start or go on, for a reason outside its code; the text is one line and says what to do."""


class ListenError(StartupError):
    """An address can't be listened on."""

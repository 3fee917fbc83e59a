"""What goes wrong only in virtual time."""

from __future__ import annotations


class VirtualStuck(RuntimeError):
    """The run can't go on. The text lists the tasks and where each of them waits."""


class VirtualDeadlock(VirtualStuck):
    """Nothing is scheduled, so nothing will ever happen again."""


class VirtualLivelock(VirtualStuck):
    """Too many steps were taken at one instant: something goes round without ever waiting for time to pass."""


class VirtualTimeLimit(VirtualStuck):
    """The run's time is over."""


class VirtualForbidden(RuntimeError):
    """Something reached for the world outside the run: a thread, a socket, a clock or a random source of the machine."""

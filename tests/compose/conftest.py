"""The stack, once for all tests of this folder, or a word on why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose.stack import Stack, running_stack, why_not


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with running_stack() as stack:
        yield stack


@pytest.fixture(scope="session")
def scaled(stack: Stack) -> Stack:
    """The same, with a second relay and a second main beside the first ones."""
    stack.compose("up", "--wait", "--wait-timeout", "120", "--no-recreate", "--scale", "relay=2", "--scale", "main=2")
    return stack

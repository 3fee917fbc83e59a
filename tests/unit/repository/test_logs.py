"""Log lines on a request say which, and none carries a prompt or an answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("gateway", "pdd", "services", "wan")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})

# Lines on something else. What a request had to do with them its own lines say.
OF_NO_REQUEST = frozenset(
    {
        "a sequence has ended and its blocks are lost to the cache",
        "a stream ends: a command can't be decoded",
        "a transfer ends: a message can't be decoded",
        "a worker ended",
        "an instance serves another model or tokenizer than the gateway: give both the same PDD_MODEL_DIR",
        "can't accept",
        "can't reach the target",
        "catalog holds a cache that can't be read",
        "catalog's stream holds an entry that can't be read",
        "forward opens",
        "forward points elsewhere",
        "gateway attached",
        "gateway detached",
        "left without withdrawing from the prefix catalog; it runs out by itself",
        "left without withdrawing; the entry runs out by itself",
        "line changes",
        "llama.cpp",
        "prefix catalog has lost what it was told, telling it everything again",
        "prefix catalog holds something else than it says",
        "prefix catalog is away, going on with what is known",
        "prefix catalog is away, trying on",
        "prefix catalog is back",
        "prefix catalog is followed",
        "prefix catalog's events have a gap, reading everything again",
        "ready",
        "registry holds an entry that can't be read",
        "registry is away, going on with the last view",
        "registry is away, trying on",
        "registry is back",
        "spans are dropped",
        "spans can't be written",
        "spans were lost",
        "stopping",
        "stream lost",
        "stream up",
        "the engine's loop broke",
        "the leased address can be renewed again",
        "the leased address can't be renewed, trying on",
        "the leased address has changed",
        "the model failed",
        "the registry's refusal could not be noted there",
        "WAN relay is up",
        "worker serves",
    }
)
CONTENT = frozenset({"answer", "body", "content", "ids", "logprobs", "messages", "prompt", "stop", "text", "tokens"})
LLAMA = "llama.cpp"  # says something of itself, in words of its own


def test_a_line_on_a_request_says_which() -> None:
    lines = list(_lines())
    assert len(lines) > 40
    nameless = {(where, event) for where, event, keys in lines if "request" not in keys}
    assert {(where, event) for where, event in nameless if event not in OF_NO_REQUEST} == set()


def test_the_lines_that_are_of_no_request_exist() -> None:
    assert OF_NO_REQUEST - {event for _, event, _ in _lines()} == set()


def test_no_line_carries_what_was_asked_or_answered() -> None:
    carrying = {(where, event, key) for where, event, keys in _lines() for key in keys & CONTENT if event != LLAMA}
    assert carrying == set()


def _lines() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Where, what, and the names of its values."""
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if _logs(call.func):
                where = f"{path.relative_to(ROOT)}:{call.lineno}"
                yield where, _event(call.args[0], tree), frozenset(keyword.arg or "**" for keyword in call.keywords)


def _logs(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in LEVELS and ast.unparse(function.value) in ("log", "_log")


def _event(argument: ast.expr, tree: ast.AST) -> str:
    """The line's text; where that has a name, what the name stands for."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [ast.unparse(argument)]
    ]
    texts = [str(value.value) for value in values if isinstance(value, ast.Constant)]
    assert texts, f"a line of log should be a constant: {ast.unparse(argument)}"
    return texts[-1]

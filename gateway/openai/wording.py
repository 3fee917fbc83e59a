"""Small pieces that both answer formats are made of: the head, usage, token strings, logprobs.

Called by the shapes of chat and completions. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.detokenizer import Vocabulary
from gateway.generation import Usage
from gateway.text import TextDelta
from pdd.sampling import TokenLogprobs

LOWEST_LOGPROB = -9999.0  # what OpenAI writes for "not likely at all"; JSON has no infinity


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every object of one answer begins with."""

    id: str
    created: int  # Unix time, seconds
    model: str

    def body(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage_body(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_string(token: bytes) -> str:
    r"""The token as text; as "bytes:\xf0\x9f" where it is but part of a character, as OpenAI writes it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def chat_logprobs(deltas: Iterable[TextDelta], vocabulary: Vocabulary) -> dict[str, object]:
    """One entry per token of the deltas."""

    def entry(token: int, logprob: float) -> dict[str, object]:
        own = vocabulary.bytes_of(token)
        return {"token": token_string(own), "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(own)}

    content = [
        entry(token, found.logprob) | {"top_logprobs": [entry(*likely) for likely in found.top]}
        for delta in deltas
        for token, found in zip(delta.tokens, delta.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(deltas: Iterable[TextDelta], vocabulary: Vocabulary) -> dict[str, object]:
    """Parallel lists, one entry per token of the deltas; a token's `top_logprobs` always has the token itself too."""
    tokens: list[str] = []
    own: list[float] = []
    top: list[dict[str, float]] = []
    offsets: list[int] = []
    for delta in deltas:
        offsets.extend(delta.offsets)
        for token, found in zip(delta.tokens, delta.logprobs, strict=True):
            tokens.append(token_string(vocabulary.bytes_of(token)))
            own.append(max(found.logprob, LOWEST_LOGPROB))
            top.append(_top_by_string(token, found, vocabulary))
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}


def _top_by_string(token: int, found: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, float]:
    likeliest_last = [*reversed(found.top), (token, found.logprob)]
    # Two tokens may read alike: the likelier one's number stays.
    by_string: dict[str, float] = {}
    for other, logprob in sorted(likeliest_last, key=lambda pair: pair[1]):
        by_string[token_string(vocabulary.bytes_of(other))] = max(logprob, LOWEST_LOGPROB)
    return dict(reversed(by_string.items()))

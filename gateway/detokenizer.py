"""Token ids back into text, one token at a time, without ever showing part of a character.

Called by `answer` with every token of an answer, whichever instance made it: the state lives here in the gateway, so a handoff
between the bytes of one character goes unnoticed. Owns what is pending of one answer; never samples, counts or waits.

A byte-level vocabulary (GPT-2's kind) is decoded exactly: each token is a run of bytes, and an incremental UTF-8 decoder keeps
back the at most 3 bytes that may still become a character. Any other is decoded through the tokenizer in a short window of
tokens, where a text that ends in U+FFFD is kept back for as long as a character can be incomplete.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 4  # bytes of UTF-8, and so the most tokens that one character can be spread over

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """Of one answer."""

    def push(self, token: int) -> str:
        """The text that this token completes; empty for special tokens and for part of a character."""
        ...

    def flush(self) -> str:
        """What is still owed at the answer's end; a character that was cut short stays unsaid."""
        ...


class Vocabulary:
    """What the tokens of one model mean. Shared by all answers; keeps what it has looked up, once a token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
        self._byte_of = _byte_alphabet() if isinstance(tokenizer.decoder, ByteLevel) else None
        self._bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str | None] = {}

    def is_special(self, token: int) -> bool:
        """Whether the token is a mark of the model's, as end-of-sequence is, and no text."""
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        """The token's own bytes, part of a character perhaps; of a special token those of its name, of an unknown one none."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._look_up(token)
        return known

    def whole_text_of(self, token: int) -> str | None:
        """The token's text where its bytes are whole characters, which most are; of a special token "", of any other None."""
        try:
            return self._whole_texts[token]
        except KeyError:
            text = self._whole_texts[token] = "" if self.is_special(token) else _whole(self.bytes_of(token))
            return text

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one answer."""
        return _ByteDetokenizer(self) if self._byte_of is not None else _WindowDetokenizer(self, self._tokenizer)

    def _look_up(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token) or ""
        if self._byte_of is not None:
            # Added tokens are written plainly, and may hold characters that stand for no byte.
            in_alphabet = all(character in self._byte_of for character in piece)
            return bytes(self._byte_of[character] for character in piece) if in_alphabet else piece.encode()
        byte = _BYTE_TOKEN.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()


class _ByteDetokenizer:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._amid_character = False

    def push(self, token: int) -> str:
        if not self._amid_character:
            text = self._vocabulary.whole_text_of(token)
            if text is not None:
                return text
        elif self._vocabulary.is_special(token):
            return ""
        text = self._utf8.decode(self._vocabulary.bytes_of(token))
        self._amid_character = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        self._utf8.reset()
        self._amid_character = False
        return ""


class _WindowDetokenizer:
    """Decodes the last shown tokens together with the pending ones: what a token reads as may depend on its neighbours."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._shown_text = ""
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if self._vocabulary.is_special(token) or not self._vocabulary.bytes_of(token):
            return ""
        self._pending.append(token)
        text = self._pending_text()
        # Bytes that never become a character must not be kept back for ever.
        if text.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._shown, self._pending = self._pending, []
        self._shown_text = self._tokenizer.decode(self._shown, skip_special_tokens=False)
        return text

    def flush(self) -> str:
        text = self._pending_text().rstrip(REPLACEMENT)
        self._pending = []
        return text

    def _pending_text(self) -> str:
        both = self._tokenizer.decode(self._shown + self._pending, skip_special_tokens=False)
        if both.startswith(self._shown_text):
            return both[len(self._shown_text) :]
        # The tokenizer rewrote what is shown already: what follows is decoded by itself.
        return self._tokenizer.decode(self._pending, skip_special_tokens=False)


def _whole(own: bytes) -> str | None:
    try:
        return own.decode()
    except UnicodeDecodeError:
        return None


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Bytes that Latin-1 prints stand for themselves; the others are numbered from U+0100 on, in order (GPT-2's `bytes_to_unicode`).
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}

"""From what a client asked to what the mesh runs: prompt ids and sampling parameters, checked.

Called by both public APIs, HTTP and gRPC, after they have parsed their own formats; so a request is judged by the same rules
however it came. Knows the model's card and nothing of transport. Randomness (a missing seed) is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.generation import GenerationSpec
from pdd.model.card import ChatTemplateError, ModelCard
from pdd.sampling import SamplingParams
from pdd.sampling_proto import MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS, sampling_from_proto, sampling_to_proto

CHAT_ROLES = frozenset({"system", "user", "assistant"})
MAX_STOPS = 4
MAX_STOP_BYTES = 256
UINT32_MAX = (1 << 32) - 1
UINT64_MASK = (1 << 64) - 1

# Checking a prompt holds up every other request, so a hopeless one must cost no more than one that just fits. Texts have about 4
# characters a token: one over the first bound is tried by its beginning before the rest, one over the second is refused unread.
_PROBE_CHARACTERS_PER_TOKEN = 8
MAX_CHARACTERS_PER_TOKEN = 16


class InvalidRequest(ValueError):
    """The client has to change `field`; the text says how. `code` is set where programs tell the case apart."""

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


CONTEXT_EXCEEDED = "context_length_exceeded"


class UnknownModel(LookupError):
    """The client asked for a model that is not served here."""


@dataclass(frozen=True, slots=True)
class Options:
    """As GenerateOptions in inference.proto; None takes the default stated there."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # 64 bits; a negative one stands for its two's complement
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that has passed every check of the gateway's."""

    spec: GenerationSpec
    stop: tuple[str, ...]


class Prompting:
    def __init__(self, card: ModelCard, context_tokens: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        """`context_tokens` gives the bound that holds now: prompt and output together. `random_bits(64)` draws a seed."""
        self.card = card
        self._context_tokens = context_tokens
        self._random_bits = random_bits
        self._vocabulary_size = card.tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def context_tokens(self) -> int:
        return self._context_tokens()

    def check_model(self, name: str) -> None:
        """Raises UnknownModel."""
        if name != self.card.name:
            raise UnknownModel(f"The model '{name}' does not exist here; '{self.card.name}' does.")

    def check_pieces(self, count: int, field: str) -> None:
        """For callers that convert the pieces of a prompt (messages, parts, ids), to call first: each takes a token at least.

        Raises InvalidRequest.
        """
        limit = self._context_tokens()
        if count >= limit:
            message = f"its {count} pieces take a token each at least; the context of {limit} tokens must hold them and one more"
            raise InvalidRequest(field, message, CONTEXT_EXCEEDED)

    def chat(self, messages: Sequence[Mapping[str, str]], field: str = "messages") -> tuple[int, ...]:
        """Ids of a conversation of {"role", "content"}, up to where the answer begins. Raises InvalidRequest."""
        if not messages:
            raise InvalidRequest(field, "at least one message is needed")
        self.check_pieces(len(messages), field)
        self._check_characters(sum(len(message["content"]) for message in messages), field, self._context_tokens())
        for place, message in enumerate(messages):
            if message["role"] not in CHAT_ROLES:
                roles = ", ".join(sorted(CHAT_ROLES))
                raise InvalidRequest(f"{field}[{place}].role", f"'{message['role']}' is no role here; use one of {roles}")
        try:
            text = self.card.render_chat(messages)
        except ChatTemplateError as error:
            raise InvalidRequest(field, f"the model's chat template refuses them: {error}") from error
        return self.text(text, field)

    def text(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """Ids of a text as it stands. Raises InvalidRequest."""
        limit = self._context_tokens()
        self._check_characters(len(text), field, limit)
        probe = _PROBE_CHARACTERS_PER_TOKEN * limit
        if len(text) > probe and (found := len(self.card.encode(text[:probe]))) > limit:
            raise _too_long(field, f"over {found}", limit)
        return _bounded(field, self.card.encode(text), limit)

    def ids(self, ids: Sequence[int], field: str = "prompt") -> tuple[int, ...]:
        """Ids that the client made itself. Raises InvalidRequest."""
        prompt = _bounded(field, ids, self._context_tokens())
        for place, token in enumerate(prompt):
            if not 0 <= token < self._vocabulary_size:
                raise InvalidRequest(f"{field}[{place}]", f"{token} is no token: ids lie in [0, {self._vocabulary_size})")
        return prompt

    def ask(
        self, prompt: tuple[int, ...], options: Options, label: str, *, streaming: bool, expected_tokens: int | None = None
    ) -> Ask:
        """Join a prompt that this object made with the client's options. Raises InvalidRequest."""
        _check_stops(options.stop)
        if expected_tokens is not None and expected_tokens < 1:
            raise InvalidRequest("expected_tokens", f"must be at least 1, is {expected_tokens}")
        spec = GenerationSpec(prompt, self._sampling(len(prompt), options), label, streaming, expected_tokens)
        return Ask(spec, options.stop)

    def _check_characters(self, count: int, field: str, limit: int) -> None:
        bound = MAX_CHARACTERS_PER_TOKEN * limit
        if count > bound:
            message = f"it has {count} characters; with the context of {limit} tokens at most {bound} are read"
            raise InvalidRequest(field, message, CONTEXT_EXCEEDED)

    def _sampling(self, prompt_tokens: int, options: Options) -> SamplingParams:
        max_tokens = self._max_tokens(prompt_tokens, options.max_tokens)
        if not 0 <= options.min_tokens <= max_tokens:
            raise InvalidRequest("min_tokens", f"must lie in [0, max_tokens={max_tokens}], is {options.min_tokens}")
        if not 0 <= options.top_k <= UINT32_MAX:
            raise InvalidRequest("top_k", f"must be at least 0 (all tokens), is {options.top_k}")
        if options.top_logprobs is not None and not 0 <= options.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest("top_logprobs", f"must lie in [0, {MAX_TOP_LOGPROBS}], is {options.top_logprobs}")
        params = SamplingParams(
            max_tokens=max_tokens,
            seed=self._seed(options.seed),
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            repetition_penalty=options.repetition_penalty,
            logit_bias=self._logit_bias(options.logit_bias),
            min_tokens=options.min_tokens,
            ignore_eos=options.ignore_eos,
            eos_ids=self.card.eos_ids,
            top_logprobs=options.top_logprobs,
        )
        # Through the message and back: its reader checks every other bound, and the numbers are those that the services will see.
        try:
            return sampling_from_proto(sampling_to_proto(params))
        except ValueError as error:
            field, _, message = str(error).partition(": ")
            raise InvalidRequest(field, message or "is not valid") from error

    def _max_tokens(self, prompt_tokens: int, asked: int | None) -> int:
        limit = self._context_tokens()
        left = limit - prompt_tokens
        if asked is None:
            return left
        if asked < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, is {asked}")
        if asked > left:
            message = (
                f"the prompt's {prompt_tokens} tokens and {asked} more exceed the context of {limit} tokens; "
                f"at most {left} are left"
            )
            raise InvalidRequest("max_tokens", message, CONTEXT_EXCEEDED)
        return asked

    def _seed(self, asked: int | None) -> int:
        if asked is None:
            return self._random_bits(64)
        if not -(1 << 63) <= asked <= UINT64_MASK:
            raise InvalidRequest("seed", f"must fit in 64 bits, is {asked}")
        return asked & UINT64_MASK

    def _logit_bias(self, entries: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        if len(entries) > MAX_LOGIT_BIASES:
            raise InvalidRequest("logit_bias", f"at most {MAX_LOGIT_BIASES} entries, got {len(entries)}")
        for token, _ in entries:
            if not 0 <= token < self._vocabulary_size:
                raise InvalidRequest("logit_bias", f"{token} is no token: ids lie in [0, {self._vocabulary_size})")
        return entries


def _bounded(field: str, ids: Sequence[int], limit: int) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest(field, "it has no tokens; at least one is needed")
    if len(ids) >= limit:
        raise _too_long(field, str(len(ids)), limit)
    return tuple(ids)


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("stop", f"at most {MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        size = len(stop.encode())
        if not 1 <= size <= MAX_STOP_BYTES:
            raise InvalidRequest("stop", f"each string must have 1 to {MAX_STOP_BYTES} bytes of UTF-8, one has {size}")


def _too_long(field: str, found: str, limit: int) -> InvalidRequest:
    message = f"it has {found} tokens; the context of {limit} tokens must hold it and at least one more"
    return InvalidRequest(field, message, CONTEXT_EXCEEDED)

"""The sim's vocabulary and tokenizer: printable words, made by program, with nothing to download.

`SimModel` samples from it, `pdd.model.load` gives the gateway its card. Any text encodes, since every byte is a token. Each word
is one token with its leading space, reached by merges that only ever lengthen a prefix (`Ġ`, `Ġt`, `Ġth`, `Ġthe`): so a word has
one tokenisation, and an answer of words and punctuation encodes to the ids it was decoded from.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdd.model.card import ModelCard

_WORDS = """
a about above across after again air all along always amber among an and answer any apple are around as ask at autumn away
back bay be because been before began behind below beside between bird blue boat book both bread bridge bright bring brown but
by calm came can carry cedar change child city clear climb close cloud coast cold come copper could country crossed day deep
did distant door down dream each early earth east eight end evening every far field find fire first five flower fog follow for
forest four free from full garden gave gentle glass go gold good grass great green ground had half hand has have head hear
held here high hill his home horse hour house how ice in into iron island it its keep kept kind know lake lamp land large last
late leaf led left less letter light like line little long look low made many map market may meadow mile mill moon more
morning most mountain music near never new next night nine no north not now ocean of old on once one open or orange orchard
other our out over own paper past path people place plain quiet rain reach red rest ring rise river road rock roof room root
rose round sail salt same sand saw sea seven shadow shape she shore short silent silver six sky slow small snow so some song
soon south spring star stay still stone storm story street summer sun take tall ten than that the their then there they this
three through tide time to together took town train tree turn two under until up valley very village voice wait walk wall warm
was watch water wave way well went were west what when where which while white who wide wild will wind window winter with wood
word work world would year yellow you young café naïve über крыло 東京
"""
_PUNCTUATION = (",", ".")
_EOS = "<|im_end|>"
_SPECIAL = ("<|im_start|>", _EOS)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What a sim computes is this function of ids, whichever hardware it plays; change the name when the function changes.
MODEL_DIGEST = xxhash.xxh3_128_hexdigest(b"pdd sim 2")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: dict[str, int]  # in the byte-level alphabet; specials excepted
    merges: tuple[tuple[str, str], ...]
    choices: tuple[int, ...]  # what the sim says: every word, and punctuation about one time in ten
    eos_id: int

    @property
    def size(self) -> int:
        return len(self.tokens) + len(_SPECIAL)

    @property
    def digest(self) -> str:
        """Of everything ids depend on."""
        return xxhash.xxh3_128_hexdigest("\n".join((*self.tokens, *_SPECIAL)).encode())


def sim_vocabulary() -> Vocabulary:
    """The same at every call and in every process."""
    alphabet = _byte_alphabet()
    tokens = {letter: byte for byte, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    words: list[int] = []
    for word in _WORDS.split():
        letters = [alphabet[byte] for byte in f" {word}".encode()]
        prefix = letters[0]
        for letter in letters[1:]:
            if prefix + letter not in tokens:
                tokens[prefix + letter] = len(tokens)
                merges.append((prefix, letter))
            prefix += letter
        words.append(tokens[prefix])
    punctuation = [tokens[mark] for mark in _PUNCTUATION] * (len(words) // (10 * len(_PUNCTUATION)))
    return Vocabulary(tokens, tuple(merges), (*words, *punctuation), len(tokens) + _SPECIAL.index(_EOS))


def sim_card(context_tokens: int) -> ModelCard:
    """What the gateway knows of the sim's model."""
    vocabulary = sim_vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.tokens, merges=list(vocabulary.merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in _SPECIAL])
    return ModelCard(
        name="pdd-sim",
        context_tokens=context_tokens,
        eos_ids=(vocabulary.eos_id,),
        model_digest=MODEL_DIGEST,
        tokenizer_digest=vocabulary.digest,
        tokenizer=tokenizer,
        chat_template=_CHAT_TEMPLATE,
        eos_token=_EOS,
    )


def _byte_alphabet() -> tuple[str, ...]:
    """The letter that stands for each byte in byte-level BPE: GPT-2's mapping, which `tokenizers` follows.

    Bytes that print in Latin-1 stand for themselves; the others take the letters from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(0x100))

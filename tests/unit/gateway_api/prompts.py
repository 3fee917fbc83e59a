"""A Prompting of the simulated model, with a small context."""

from gateway.prompting import Prompting
from pdd.engine.sim.vocabulary import sim_card
from pdd.model.card import ModelCard

CONTEXT = 64
CARD = sim_card(CONTEXT)


def prompting(context_tokens: int = CONTEXT, card: ModelCard = CARD) -> Prompting:
    return Prompting(card, lambda: context_tokens, lambda bits: (1 << bits) - 1)

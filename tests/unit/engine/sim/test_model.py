from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import xxhash
from hypothesis import given

from pdd.engine.base import EngineFault
from pdd.engine.model import Row
from pdd.engine.sim.cost import HARDWARE
from pdd.engine.sim.digest import Noise
from pdd.engine.sim.model import SimConfig, SimLogits, SimModel
from pdd.engine.sim.reference import continuation, prompt_blocks
from pdd.engine.sim.vocabulary import sim_card, sim_vocabulary
from pdd.kv.layout import differences

PROMPT = [(11 * n) % 900 for n in range(40)]


def rows(slot: int, ids: list[int], start: int = 0) -> list[Row]:
    return [Row(slot, start + n, token, n == len(ids) - 1) for n, token in enumerate(ids)]


def next_token(model: SimModel, wanted: list[Row]) -> int:
    (logits,), _ = model.forward(wanted)
    return logits.argmax()


@pytest.mark.parametrize("pad", [False, True])
def test_exported_blocks_imported_elsewhere_give_the_same_next_token(pad: bool) -> None:
    source, target = SimModel(SimConfig(pad_to_declared=pad)), SimModel(SimConfig(pad_to_declared=pad))
    token = next_token(source, rows(0, PROMPT))
    target.import_kv(5, source.export_kv(0, 0, 2))
    assert next_token(target, rows(5, PROMPT[32:], start=32)) == token == continuation(PROMPT, 1)[0]


@given(
    blocks=st.sampled_from([1, 16, 32]),
    pages=st.tuples(*[st.sampled_from([1, 5, 16, 24, 32, 64])] * 2),
    dtypes=st.tuples(*[st.sampled_from(["f16", "f32"])] * 2),
    pad=st.booleans(),
)
def test_kv_is_handed_over_exactly_between_any_pages_and_types(
    blocks: int, pages: tuple[int, int], dtypes: tuple[str, str], pad: bool
) -> None:
    ends = (
        SimModel(SimConfig(block_tokens=blocks, page_tokens=page, device_dtype=dtype, pad_to_declared=pad))
        for page, dtype in zip(pages, dtypes, strict=True)
    )
    source, target = ends
    full = len(PROMPT) // blocks
    source.forward(rows(2, PROMPT[::-1]))  # leaves its bytes in pages that are used again
    source.clear(2)
    token = next_token(source, rows(0, PROMPT))
    payloads = source.export_kv(0, 0, full)
    target.import_kv(5, payloads)
    assert target.export_kv(5, 0, full) == payloads
    tail = PROMPT[full * blocks :]
    assert not tail or next_token(target, rows(5, tail, start=full * blocks)) == token == continuation(PROMPT, 1)[0]


def test_unpadded_blocks_are_those_of_the_reference() -> None:
    model = SimModel(SimConfig())
    model.forward(rows(0, PROMPT))
    assert model.export_kv(0, 0, 2) == prompt_blocks(PROMPT)


def test_slots_share_nothing() -> None:
    model = SimModel(SimConfig())
    logits, _ = model.forward([*rows(1, PROMPT[:20]), *rows(0, PROMPT)])
    assert [row.argmax() for row in logits] == [continuation(PROMPT[:20], 1)[0], continuation(PROMPT, 1)[0]]


def test_a_cleared_slot_starts_anew() -> None:
    model = SimModel(SimConfig())
    model.forward(rows(0, PROMPT[::-1]))
    model.clear(0)
    assert next_token(model, rows(0, PROMPT)) == continuation(PROMPT, 1)[0]


def test_rows_with_a_hole_are_refused() -> None:
    model = SimModel(SimConfig())
    with pytest.raises(EngineFault, match="position 3"):
        model.forward(rows(0, [1, 2], start=3))


def test_rows_past_the_context_are_refused() -> None:
    with pytest.raises(EngineFault, match="position 16"):
        SimModel(SimConfig(context_tokens=16)).forward(rows(0, PROMPT))


def test_an_import_into_a_slot_in_use_is_refused() -> None:
    model = SimModel(SimConfig())
    model.forward(rows(0, [1]))
    with pytest.raises(EngineFault, match="clear it"):
        model.import_kv(0, prompt_blocks(PROMPT))


@pytest.mark.parametrize("length", [0, 127, 129, 16 * 23_040])
def test_a_payload_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(EngineFault, match=f"{length} bytes where 128 are a block"):
        SimModel(SimConfig()).import_kv(0, [bytes(length)])


def test_padding_that_is_not_zero_is_refused() -> None:
    model = SimModel(SimConfig(pad_to_declared=True))
    model.forward(rows(0, PROMPT))
    damaged = bytearray(model.export_kv(0, 0, 1)[0])
    damaged[-1] = 1
    with pytest.raises(EngineFault, match="padding"):
        model.import_kv(1, [bytes(damaged)])


def test_blocks_that_were_not_computed_cannot_be_exported() -> None:
    model = SimModel(SimConfig())
    model.forward(rows(0, PROMPT))
    with pytest.raises(EngineFault, match="no block 2"):
        model.export_kv(0, 0, 3)


def test_logits_have_their_maximum_at_the_argmax_and_prefer_words() -> None:
    vocabulary = sim_vocabulary()
    for kv_hash in [*range(0, 2048, 512), *(pow(3, n, 2**64) for n in range(200))]:
        logits = SimLogits(kv_hash, vocabulary)
        scores = logits.array()
        assert scores.shape == (vocabulary.size,)
        assert scores.dtype == np.float32
        assert int(scores.argmax()) == logits.argmax()
        assert set(np.argsort(scores)[-100:]) <= {*vocabulary.choices, vocabulary.eos_id}


def mixed(count: int) -> list[int]:
    """Hashes as a text has them."""
    return [xxhash.xxh3_64_intdigest(n.to_bytes(4, "little")) for n in range(count)]


def test_there_are_near_ties_and_clear_choices() -> None:
    scores = (np.sort(SimLogits(kv_hash, sim_vocabulary()).array()) for kv_hash in mixed(400))
    leads = np.array([ordered[-1] - ordered[-2] for ordered in scores])
    assert leads.min() > 0
    assert 0.02 < np.mean(leads < 0.1) < 0.3
    assert np.mean(leads > 0.4) > 0.4


@pytest.mark.parametrize("amplitude", [0.0, 0.001, 0.1, 1.0, 50.0])
def test_the_argmax_is_that_of_the_array_under_any_noise(amplitude: float) -> None:
    for kv_hash in (0, *mixed(100)):
        logits = SimLogits(kv_hash, sim_vocabulary(), Noise(amplitude, seed=3))
        assert logits.argmax() == int(logits.array().argmax())


def test_noise_moves_each_logit_by_its_amplitude_at_most_and_always_alike() -> None:
    (kv_hash,) = mixed(1)
    exact = SimLogits(kv_hash, sim_vocabulary()).array()
    noisy = SimLogits(kv_hash, sim_vocabulary(), Noise(0.25, seed=3)).array()
    assert 0.2 < np.abs(noisy - exact).max() <= 0.2501
    assert np.array_equal(noisy, SimLogits(kv_hash, sim_vocabulary(), Noise(0.25, seed=3)).array())
    assert not np.array_equal(noisy, SimLogits(kv_hash, sim_vocabulary(), Noise(0.25, seed=4)).array())


def test_more_noise_changes_more_choices_and_little_noise_few() -> None:
    exact = [SimLogits(kv_hash, sim_vocabulary()).argmax() for kv_hash in mixed(300)]

    def changed(amplitude: float) -> float:
        noise = Noise(amplitude, seed=3)
        return float(
            np.mean([SimLogits(h, sim_vocabulary(), noise).argmax() != e for h, e in zip(mixed(300), exact, strict=True)])
        )

    assert 0 < changed(0.05) < changed(0.2) < changed(2.0) < 1


def test_the_kv_is_the_same_under_noise() -> None:
    model = SimModel(SimConfig(noise=Noise(1.0)))
    model.forward(rows(0, PROMPT))
    assert model.export_kv(0, 0, 2) == prompt_blocks(PROMPT)


def test_ends_come_now_and_then() -> None:
    text = continuation([1, 2, 3], 20_000, ignore_eos=True)
    assert 20_000 / 1024 < text.count(sim_vocabulary().eos_id) < 20_000 / 256


def test_a_pass_costs_what_the_profile_says_and_an_import_is_charged_once() -> None:
    model = SimModel(SimConfig(hardware=HARDWARE["cpu-tiny"]))
    model.import_kv(0, prompt_blocks(PROMPT))
    _, first = model.forward(rows(0, [1], start=32))
    _, second = model.forward(rows(0, [1], start=33))
    assert first.simulated_s - second.simulated_s == pytest.approx(2 * model.layout.block_bytes / 8e9, rel=0.05)


def test_a_wider_type_on_the_device_costs_memory_time_and_room() -> None:
    narrow, wide = (SimModel(SimConfig(hardware=HARDWARE["gpu-b"], device_dtype=dtype)) for dtype in ("f16", "f32"))
    for model in (narrow, wide):
        model.import_kv(0, prompt_blocks(PROMPT * 20))
    costs = [model.forward(rows(0, [1], start=800))[1].simulated_s for model in (narrow, wide)]
    assert costs[1] - costs[0] == pytest.approx(801 * narrow.layout.token_bytes / 4.0e12)
    fits = SimConfig(slots=8, context_tokens=400_000, hardware=HARDWARE["gpu-b"])
    SimModel(fits).load()
    with pytest.raises(EngineFault, match="in f32"):
        SimModel(replace(fits, device_dtype="f32")).load()


def test_layouts_differ_where_the_model_does_and_not_where_the_device_does() -> None:
    layout = SimModel(SimConfig()).layout
    other = SimModel(SimConfig(page_tokens=32, device_dtype="f32", hardware=HARDWARE["gpu-b"])).layout
    assert (other.page_tokens, other.device_dtype) == (32, "f32")
    assert differences(layout, other) == ()
    assert differences(layout, SimModel(SimConfig(block_tokens=32)).layout) != ()
    assert (layout.model_digest, layout.tokenizer_digest) == (sim_card(1).model_digest, sim_card(1).tokenizer_digest)
    assert layout.block_bytes == 16 * 23_040

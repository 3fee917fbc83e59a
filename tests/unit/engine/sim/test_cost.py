import math

import pytest

from pdd.engine.sim.cost import HARDWARE, MODELS, HardwareProfile, ModelProfile, StepShape, kv_capacity_tokens, step_cost_s

MODEL = ModelProfile("m", parameters=1e6, weight_bytes=2e6, layers=2, attention_width=8, kv_heads=1, head_size=4)
DEVICE = HardwareProfile("d", flops=1e9, memory_bytes_s=1e9, memory_bytes=3e6, interconnect_bytes_s=1e6, overhead_s=0.5)


def test_a_step_takes_the_slower_of_computing_and_reading() -> None:
    assert step_cost_s(StepShape(rows=1, attended=0, held=0), DEVICE, MODEL) == pytest.approx(0.5 + 2e-3)
    assert step_cost_s(StepShape(rows=10, attended=0, held=0), DEVICE, MODEL) == pytest.approx(0.5 + 20e-3)


def test_attention_costs_four_operations_a_layer_width_and_token() -> None:
    with_attention = step_cost_s(StepShape(rows=10, attended=1000, held=0), DEVICE, MODEL)
    assert with_attention == pytest.approx(0.5 + (20e6 + 1000 * 4 * 2 * 8) / 1e9)


def test_kv_is_read_and_imports_cross_the_interconnect() -> None:
    assert MODEL.kv_bytes == 2 * 2 * 1 * 4 * 2
    shape = StepShape(rows=1, attended=0, held=10_000, imported_bytes=1000)
    assert step_cost_s(shape, DEVICE, MODEL) == pytest.approx(0.5 + 1e-3 + (2e6 + 320_000) / 1e9)


def test_capacity_is_what_the_weights_leave() -> None:
    assert kv_capacity_tokens(DEVICE, MODEL) == 1e6 / 32
    assert math.isinf(kv_capacity_tokens(HARDWARE["instant"], MODELS["tiny"]))


def test_the_profile_for_tests_costs_nothing() -> None:
    assert step_cost_s(StepShape(1000, 100_000, 100_000, 10**9), HARDWARE["instant"], MODELS["dense-8b"]) == 0


def test_the_profile_for_people_lets_tokens_be_seen() -> None:
    cpu, tiny = HARDWARE["cpu-tiny"], MODELS["tiny"]
    assert step_cost_s(StepShape(1, 100, 100), cpu, tiny) == pytest.approx(0.010, rel=0.1)
    assert 128 / step_cost_s(StepShape(128, 128 * 64, 128), cpu, tiny) == pytest.approx(1500, rel=0.1)


def test_one_site_is_better_at_prefill_and_the_other_at_decode() -> None:
    a, b, model = HARDWARE["gpu-a"], HARDWARE["gpu-b"], MODELS["dense-8b"]
    prefill, decode = StepShape(2048, 2048 * 1024, 2048), StepShape(8, 8 * 4096, 8 * 4096)
    assert step_cost_s(prefill, a, model) < step_cost_s(prefill, b, model)
    assert step_cost_s(decode, b, model) < step_cost_s(decode, a, model)

import pytest

from gateway.handoff.machine import Pipeline
from gateway.routing.settings import RoutePolicy


def test_singular_cannot_be_forced() -> None:
    with pytest.raises(ValueError, match="main's cache would fall behind"):
        RoutePolicy(pipeline=Pipeline.SINGULAR)


@pytest.mark.parametrize("wrong", [{"load_bound": 0.9}, {"step_s": 0.0}, {"prefill_tokens_s": -1.0}])
def test_a_policy_that_cannot_work_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RoutePolicy(**wrong)  # type: ignore[arg-type]

"""One suite for every engine: `contract.EngineContract`, to be subclassed with an engine."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.engine_contract.{part}" for part in ("caching", "case", "contract", "edges", "handoff", "observer"))
)

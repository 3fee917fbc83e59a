"""One suite for every engine: `contract.EngineContract`, to be subclassed with an engine."""

import pytest

pytest.register_assert_rewrite("tests.engine_contract.contract", "tests.engine_contract.observer")

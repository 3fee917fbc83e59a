import socket

import pytest
from pydantic import ValidationError

from services.main.config import MainSettings
from services.prefill.config import PrefillSettings
from services.relay.config import RelaySettings


@pytest.mark.parametrize(
    ("kind", "instance_id", "site"),
    [(PrefillSettings, "prefill-3f2a", "a"), (RelaySettings, "relay-3f2a", "a"), (MainSettings, "main-3f2a", "b")],
)
def test_each_role_is_named_after_its_host_and_has_a_site_of_its_own(
    kind: type[PrefillSettings | RelaySettings | MainSettings], instance_id: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PDD_INSTANCE_ID", "PDD_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "3f2a")
    settings = kind()
    assert (settings.instance_id, settings.site) == (instance_id, site)


def test_replicas_on_hosts_with_long_names_keep_their_names_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDD_INSTANCE_ID", raising=False)
    ids = []
    for number in range(2):
        monkeypatch.setattr(socket, "gethostname", lambda number=number: "h" * 62 + f"-{number}")
        ids.append(RelaySettings().instance_id)
    assert [len(name) for name in ids] == [64, 64]
    assert ids[0] != ids[1]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_INSTANCE_ID", "main-7")
    monkeypatch.setenv("PDD_WAN_CONTROL", "http://10.0.0.1:8474")
    monkeypatch.setenv("PDD_KV_BUDGET_MB", "3")
    settings = MainSettings()
    assert (settings.instance_id, settings.wan_control, settings.kv_budget_bytes) == ("main-7", "http://10.0.0.1:8474", 3 << 20)


@pytest.mark.parametrize(("name", "value"), [("PDD_INSTANCE_ID", "x" * 65), ("PDD_INSTANCE_ID", ""), ("PDD_KV_BUDGET_MB", "0")])
def test_settings_out_of_bounds_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name.removeprefix("PDD_").lower()):
        MainSettings()


@pytest.mark.parametrize("kind", [PrefillSettings, MainSettings])
@pytest.mark.parametrize(("given", "expected_mb"), [(None, 50), ("0", 0), ("7", 7)])
def test_the_prefix_cache_may_hold_half_of_the_budget_unless_told_otherwise(
    kind: type[PrefillSettings | MainSettings], given: str | None, expected_mb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDD_KV_BUDGET_MB", "100")
    monkeypatch.delenv("PDD_PREFIX_CACHE_MB", raising=False)
    if given is not None:
        monkeypatch.setenv("PDD_PREFIX_CACHE_MB", given)
    assert kind().prefix_cache_bytes == expected_mb << 20


@pytest.mark.parametrize(("kind", "interval_ms"), [(PrefillSettings, 100), (MainSettings, 200)])
def test_main_tells_the_catalog_across_the_link_less_often(
    kind: type[PrefillSettings | MainSettings], interval_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PDD_CATALOG_INTERVAL_MS", raising=False)
    assert kind().catalog_interval_ms == interval_ms
    monkeypatch.setenv("PDD_CATALOG_INTERVAL_MS", "50")
    assert kind().catalog_interval_ms == 50


def test_half_of_the_budget_may_wait_for_a_link_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_KV_BUDGET_MB", "100")
    monkeypatch.delenv("PDD_BACKLOG_MB", raising=False)
    assert PrefillSettings().backlog_bytes == 50 << 20
    monkeypatch.setenv("PDD_BACKLOG_MB", "3")
    assert PrefillSettings().backlog_bytes == 3 << 20

from pathlib import Path

import pytest

from gateway.mesh.settings import MeshSettings, PipelineChoice
from pdd.cli.plan import (
    GATEWAY_ENVIRONMENT,
    PROCESS_ENVIRONMENT,
    Addresses,
    EngineName,
    Handoff,
    MeshOptions,
    Pipeline,
    inherited_environment,
    plan_mesh,
)

ADDRESSES = Addresses(
    http="127.0.0.1:8000", grpc="127.0.0.1:50050", wan_control="127.0.0.1:8474", redis_url="redis://127.0.0.1:6379/0"
)


def test_each_role_gets_as_many_processes_as_asked_for() -> None:
    plan = plan_mesh(MeshOptions(prefills=2, relays=3, mains=2), ADDRESSES)
    assert [spec.name for spec in plan.instances] == [
        "prefill-0",
        "prefill-1",
        "relay-0",
        "relay-1",
        "relay-2",
        "main-0",
        "main-1",
    ]
    assert {spec.module for spec in plan.instances} == {"services.prefill", "services.relay", "services.main"}
    assert (plan.wan.module, plan.gateway.module) == ("wan", "gateway")


def test_only_mains_stand_in_site_b_and_behind_the_link() -> None:
    plan = plan_mesh(MeshOptions(relays=2, mains=2), ADDRESSES)
    for spec in plan.instances:
        is_main = spec.module == "services.main"
        assert spec.environment["PDD_SITE"] == ("b" if is_main else "a")
        assert spec.environment.get("PDD_WAN_CONTROL") == ("http://127.0.0.1:8474" if is_main else None)


def test_processes_learn_the_options() -> None:
    options = MeshOptions(
        engine=EngineName.LLAMA,
        pipeline=Pipeline.DIRECT,
        handoff=Handoff.CATCH_UP,
        rtt_ms=12.5,
        rate_mbit=20,
        gateway_workers=2,
        model_dir=Path("/models"),
        environment={"PDD_SLOTS": "3"},
    )
    plan = plan_mesh(options, ADDRESSES)
    assert plan.gateway.environment["PDD_WAN_MBIT"] == "20"
    assert plan.wan.environment["PDD_WAN_RTT_MS"] == "12.5"
    assert plan.wan.environment["PDD_WAN_RATE_MBIT"] == "20"
    assert plan.gateway.environment["PDD_PIPELINE"] == "direct"
    assert plan.gateway.environment["PDD_WORKERS"] == "2"
    assert plan.gateway.environment["PDD_HANDOFF"] == "catch_up"
    assert plan.gateway.environment["PDD_HTTP"] == "127.0.0.1:8000"
    assert plan.gateway.environment["PDD_LISTEN"] == "127.0.0.1:50050"
    for spec in (plan.wan, *plan.instances, plan.gateway):
        assert spec.environment["PDD_ENGINE"] == "llama"
        assert spec.environment["PDD_MODEL_DIR"] == "/models"
        assert spec.environment["PDD_REDIS_URL"] == "redis://127.0.0.1:6379/0"
        assert spec.environment["PDD_SLOTS"] == "3"
        assert spec.environment["OMP_NUM_THREADS"] == "1"
        assert PROCESS_ENVIRONMENT.items() <= spec.environment.items()
    assert GATEWAY_ENVIRONMENT.items() <= plan.gateway.environment.items()


def test_what_names_one_process_is_not_inherited() -> None:
    own = {
        "PATH": "/bin",
        "PDD_SLOTS": "4",
        "PDD_INSTANCE_ID": "main-7",
        "PDD_LISTEN": "0.0.0.0:1",
        "PDD_WAN_CONTROL": "http://x",
    }
    assert inherited_environment(own) == {"PATH": "/bin", "PDD_SLOTS": "4"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mains": 0}, "main"),
        ({"prefills": 0}, "prefill"),
        ({"relays": -1}, "relay"),
        ({"gateway_workers": 0}, "worker"),
        ({"relays": 0, "pipeline": Pipeline.RELAY}, "relay"),
        ({"rate_mbit": 0}, "rate"),
        ({"rtt_ms": -1}, "RTT"),
    ],
)
def test_a_mesh_that_could_not_serve_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MeshOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("pipeline", [Pipeline.DIRECT, Pipeline.AUTO])
def test_only_the_relay_pipeline_needs_a_relay(pipeline: Pipeline) -> None:
    assert MeshOptions(pipeline=pipeline, relays=0).relays == 0


def test_every_pipeline_that_the_gateway_takes_can_be_asked_for() -> None:
    assert {pipeline.value for pipeline in Pipeline} == {choice.value for choice in PipelineChoice}
    assert MeshOptions().pipeline.value == MeshSettings.model_fields["pipeline"].default.value

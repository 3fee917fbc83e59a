"""compose.yaml in a container engine, with the real model: answers, what crosses the link, more instances, and one that dies."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compose.stack import ROOT, Container, Stack, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

SEA = "The sea was calm and the night was long. " * 20


def curl_of_the_readme() -> str:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^curl -N .*?(?<!\\)$", text, re.MULTILINE | re.DOTALL)
    assert found, "README.md shows no curl of a streamed answer"
    return found[0]


def test_the_curl_of_the_readme_streams_an_answer(stack: Stack) -> None:
    command = curl_of_the_readme().replace("127.0.0.1:8000", f"127.0.0.1:{stack.environment['PDD_HTTP_PORT']}")
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True).stdout
    *events, last = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert last == "[DONE]"
    assert len(events) > 3
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events if '"delta"' in event)
    assert len(text.split()) > 3, said


def test_kv_crosses_the_link_once_and_what_main_holds_does_not_cross_again(stack: Stack) -> None:
    (main,) = stack.containers("main")
    before = stack.crossed(main)
    answer = stack.complete(SEA, 150)
    assert (answer.plan["pipeline"], answer.tokens) == ("relay", 150)
    kv_bytes = int(answer.plan["missing_bytes"])
    assert kv_bytes > 1_000_000
    # Once: frames and token ids add little to it.
    assert kv_bytes <= stack.crossed(main) - before < 1.1 * kv_bytes

    before = stack.crossed(main)
    again = stack.complete(SEA, 150)
    assert again.text == answer.text
    assert again.plan["missing_bytes"] == "0"
    assert stack.crossed(main) - before < 0.1 * kv_bytes


def test_the_sites_reach_each_other_through_wan_alone(stack: Stack) -> None:
    (main,), (prefill,) = stack.containers("main"), stack.containers("prefill")
    address = next(iter(stack.inspect(prefill)["NetworkSettings"]["Networks"].values()))["IPAddress"]
    for host, port in ((address, 50051), ("prefill", 50051), ("redis", 6379), ("gateway", 8000)):
        assert not reaches(stack, main, host, port), host
    assert reaches(stack, main, "wan-site-b", 6379)
    assert reaches(stack, prefill, "redis", 6379)


def reaches(stack: Stack, container: Container, host: str, port: int) -> bool:
    connected = f"import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex(({host!r}, {port})))"
    try:
        return stack.run_in(container, connected).strip() == "0"
    except AssertionError as error:
        if "gaierror" in str(error):  # the name means nothing there
            return False
        raise


def test_no_container_runs_as_root_or_may_write_to_its_root(stack: Stack) -> None:
    for container in stack.containers():
        config = stack.inspect(container)
        assert config["Config"]["User"] not in ("", "0", "root"), container.service
        assert config["HostConfig"]["ReadonlyRootfs"], container.service
        assert config["HostConfig"]["Memory"] > 0, container.service
        assert config["HostConfig"]["NanoCpus"] > 0, container.service


def test_scaled_instances_serve_each_under_a_name_of_its_own(scaled: Stack) -> None:
    instances = {container.instance for container in scaled.containers("prefill", "relay", "main")}
    assert len(instances) == 5
    until(lambda: scaled.connected() == instances)
    assert chosen(scaled, "main", "all") == {main.instance for main in scaled.containers("main")}
    assert all(scaled.crossed(main) > 1_000_000 for main in scaled.containers("main"))


@pytest.mark.parametrize("service", ["relay", "main"])
def test_a_killed_instance_is_done_without_and_comes_back(scaled: Stack, service: str) -> None:
    victim = scaled.containers(service)[0]
    scaled.kill(victim)
    until(lambda: scaled.complete(f"{service} is gone. {SEA}", 20).tokens == 20)
    until(lambda: scaled.inspect(victim)["RestartCount"] == 1)
    until(lambda: is_healthy(scaled, victim))
    until(lambda: victim.instance in scaled.connected())
    rounds = itertools.count()
    until(lambda: victim.instance in chosen(scaled, service, f"{service} {next(rounds)}"))


def chosen(stack: Stack, role: str, beginning: str) -> set[str | None]:
    """Who is given requests that come at once and so are spread; no prompt has been asked before."""
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda number: stack.complete(f"{beginning} {number}. {SEA}", 50), range(4))
        return {answer.plan.get(role) for answer in answers}


def is_healthy(stack: Stack, container: Container) -> bool:
    return bool(stack.inspect(container)["State"]["Health"]["Status"] == "healthy")

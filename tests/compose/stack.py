"""The stack of compose.yaml, as an operator runs it, but in a project and on ports of its own."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = "pdd-test"
BUILD_S = 1200.0  # the engine is compiled where no layer and no wheel has it
COMMAND_S = 180.0
HTTP_S = 180.0
POLL_S = 0.2
PORTS = ("PDD_HTTP_PORT", "PDD_GRPC_PORT", "PDD_WAN_PORT", "PDD_LOCUST_PORT")


def why_not() -> str | None:
    """What is missing to run containers, in a line; None where nothing is."""
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            return f"no container engine answers: {error}"
        if done.returncode:
            return f"no container engine answers: `{' '.join(command)}` says {done.stderr.strip()[-200:]!r}"
    return None


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    service: str

    @property
    def instance(self) -> str:
        """The id under which it is registered."""
        return f"{self.service}-{self.id[:12]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion: what was planned for it, and what came."""

    plan: Mapping[str, str]
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Stack:
    """`environment` is what compose.yaml reads its settings from."""

    environment: Mapping[str, str]

    # ── docker ──

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        """What `docker compose arguments…` prints. Raises AssertionError with all it said where it fails."""
        # /dev/null: the settings of whoever works in this checkout are not the tests'.
        return ran(
            "docker", "compose", "--env-file", "/dev/null", "-p", PROJECT, *arguments, env=self.environment, timeout_s=timeout_s
        )

    def containers(self, *services: str) -> list[Container]:
        """The running ones, of all services or of these."""
        lines = self.compose("ps", "--format", "{{.ID}} {{.Service}}", "--no-trunc", *services).splitlines()
        return [Container(*line.split()) for line in lines]

    def inspect(self, container: Container) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ran("docker", "inspect", container.id))[0]
        return found

    def run_in(self, container: Container, code: str) -> str:
        """What a line of Python prints in a running container."""
        return ran("docker", "exec", container.id, "python", "-c", code)

    def kill(self, container: Container) -> None:
        """SIGKILL to all its processes, from within, as when memory runs out; `docker kill` would keep it from starting again."""
        ran("docker", "exec", container.id, "python", "-c", "import os; os.kill(-1, 9)")

    # ── the mesh ──

    def url(self, setting: str, path: str) -> str:
        return f"http://127.0.0.1:{self.environment[setting]}{path}"

    def crossed(self, container: Container) -> int:
        """Bytes that have crossed the link to a main."""
        with urllib.request.urlopen(self.url("PDD_WAN_PORT", "/counters"), timeout=HTTP_S) as response:
            forwards = json.load(response)["forwards"]
        return sum(forward["a_to_b_bytes"] for forward in forwards if forward["name"] == container.instance)

    def metric(self, name: str) -> dict[str, float]:
        """The gateway's values of a metric, by what is in its braces."""
        with urllib.request.urlopen(self.url("PDD_HTTP_PORT", "/metrics"), timeout=HTTP_S) as response:
            text = response.read().decode()
        return {labels: float(value) for labels, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)}

    def connected(self) -> set[str]:
        """Ids of the instances that the gateway has a stream to."""
        labels = [labels for labels, value in self.metric("pdd_instance_connected").items() if value == 1]
        return set(re.findall(r'instance_id="([^"]+)"', " ".join(labels)))

    def complete(self, prompt: str, max_tokens: int) -> Answer:
        """An answer of just so many tokens, the same for the same prompt. Raises urllib's errors."""
        length = {"max_tokens": max_tokens, "min_tokens": max_tokens}
        body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "temperature": 0, **length}
        request = urllib.request.Request(self.url("PDD_HTTP_PORT", "/v1/completions"), json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=HTTP_S) as response:
            answer = json.load(response)
            plan = dict(part.split("=", 1) for part in response.headers["x-pdd-plan"].split("; ", 9) if "=" in part)
        return Answer(plan, answer["choices"][0]["text"], answer["usage"]["completion_tokens"])


def ran(*command: str, env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_S) -> str:
    """What a command prints. Raises AssertionError with all it said where it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Return once `condition()` is true; an error of the network counts as false. Raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"not within {timeout_s:g} s")
        time.sleep(POLL_S)


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Built and up; taken down at the end with its volumes, and shown where it fails to come up."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PDD_", "OTEL_", "COMPOSE_"))}
    stack = Stack({**own, **{name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)}})
    down = ("down", "--volumes", "--remove-orphans", "--timeout", "10")
    stack.compose(*down)  # what a test run that was killed has left
    try:
        stack.compose("build", timeout_s=BUILD_S)
        try:
            stack.compose("up", "--wait", "--wait-timeout", "300", timeout_s=400)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{stack.compose('ps', '--all')}\n{stack.compose('logs', '--tail', '20')}") from None
        yield stack
    finally:
        stack.compose(*down)


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]

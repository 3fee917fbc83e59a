"""Where locust starts; docs/load-tests.md has the commands. Puts the parts together, and owns nothing.

locust -f loadtest/locustfile.py --host http://127.0.0.1:8000
"""

from __future__ import annotations

from http.client import HTTPException

from locust import events, stats
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest import page
from loadtest.measures import bucket_ms
from loadtest.options import Options, add_options, options_of
from loadtest.report import Report
from loadtest.run import Run
from loadtest.shape import TraceShape
from loadtest.users import AgentUser, ChatUser, DocumentUser, MeshUser, TraceUser
from pdd.model.manifest import ModelFilesError

__all__ = ["AgentUser", "ChatUser", "DocumentUser", "TraceShape", "TraceUser"]

stats.PERCENTILES_TO_REPORT[:] = [0.5, 0.9, 0.99, 0.999, 1.0]
stats.PERCENTILES_TO_STATISTICS[:] = [0.9, 0.99]
stats.PERCENTILES_TO_CHART[:] = [0.5, 0.9, 0.99]
stats.STATS_TYPE_WIDTH = 12
stats.bucket_response_time = bucket_ms  # type: ignore[assignment]  # floats are as good as keys


def _set_up(environment: Environment, **_: object) -> None:
    assert environment.parsed_options is not None
    options = options_of(environment.parsed_options, environment.host)
    environment.host = options.host
    _refuse_what_takes_one_process(environment, options)
    if not isinstance(environment.runner, MasterRunner):
        MeshUser.run_of_test = _run(environment, options)
    _choose_users(environment, replays=options.trace is not None)
    if environment.web_ui is not None:
        page.add_tabs(environment.web_ui)
    if not isinstance(environment.runner, WorkerRunner):
        _report(environment, Report(environment, options))


def _run(environment: Environment, options: Options) -> Run:
    process = environment.runner.worker_index if isinstance(environment.runner, WorkerRunner) else 0
    try:
        return Run(environment, options, process)
    except (OSError, HTTPException, ModelFilesError, ValueError) as error:
        raise SystemExit(f"loadtest: {options.host}: {error}") from error


def _report(environment: Environment, report: Report) -> None:
    if isinstance(environment.runner, MasterRunner):
        environment.events.quit.add_listener(lambda **_: report.tell())  # the workers' last reports have come by then
        return
    environment.events.test_start.add_listener(lambda **_: report.started())
    environment.events.test_stop.add_listener(lambda **_: report.stopped())


def _refuse_what_takes_one_process(environment: Environment, options: Options) -> None:
    several = isinstance(environment.runner, MasterRunner | WorkerRunner)
    if several and (options.trace is not None or options.check_counters):
        raise SystemExit("loadtest: --trace and --check-counters take one process: leave --master, --worker and --processes away")


def _choose_users(environment: Environment, *, replays: bool) -> None:
    """The trace's users and its shape where there is a trace, the others where there is none."""
    environment.user_classes = [one for one in environment.user_classes if (one is TraceUser) == replays]
    if not environment.user_classes:
        raise SystemExit("loadtest: TraceUser goes with --trace FILE, and the other users go without it")
    if replays:
        assert MeshUser.run_of_test.replay is not None
        TraceShape.replay = MeshUser.run_of_test.replay
    else:
        environment.shape_class = None


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(_set_up)

"""The load shape that follows a trace: as many users as its requests take, until the last has its answer.

locust asks it every second. `--run-time` ends it earlier: locust itself heeds that only without a shape.
"""

from __future__ import annotations

from typing import ClassVar

from locust import LoadTestShape, User

from loadtest.replay import Replay
from loadtest.users import TraceUser

_SPAWN_RATE = 100.0


class TraceShape(LoadTestShape):
    use_common_options = True  # where there is no trace, this shape is taken out, and -u, -r and -t hold
    replay: ClassVar[Replay]

    def tick(self) -> tuple[int, float, list[type[User]] | None] | None:
        assert self.runner is not None
        assert self.runner.environment.parsed_options is not None
        run_time_s = self.runner.environment.parsed_options.run_time
        now_s = TraceUser.run_of_test.now_s()
        if self.replay.finished or (run_time_s and now_s >= run_time_s):
            return None
        return self.replay.users(now_s), _SPAWN_RATE, [TraceUser]

"""A service for the tests of `run_service`: does what PROGRAM in its environment says."""

import asyncio
import errno
import os

from pydantic_settings import BaseSettings, SettingsConfigDict

from pdd.catalog.base import IncompatibleInstance
from pdd.rpc.errors import StartupError
from pdd.rpc.run import read_settings, run_service
from pdd.telemetry import get_logger

log = get_logger(__name__)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PDD_")
    slots: int = 1


async def main(stop: asyncio.Event) -> None:
    full = StartupError("the disk is full; empty it")
    match os.environ["PROGRAM"]:
        case "startup_error":
            raise full
        case "grouped_startup_error":
            raise ExceptionGroup("unhandled", [full, ExceptionGroup("unhandled", [full])])
        case "incompatible":
            raise IncompatibleInstance("main main-1 can't join beside relay relay-0")
        case "address_in_use":
            raise OSError(errno.EADDRINUSE, "Address already in use")
        case "bug":
            raise ExceptionGroup("unhandled", [full, ZeroDivisionError()])
        case "until_stopped":
            log.info("started")
            await stop.wait()
            log.info("stopped in good order")
        case "deaf":
            log.info("started")
            await stop.wait()
            log.info("heard")
            try:
                await asyncio.Event().wait()
            finally:
                log.info("cancelled")


if __name__ == "__main__":
    if os.environ["PROGRAM"] == "bad_settings":
        os.environ["PDD_SLOTS"] = "many"
        read_settings(Settings, "test")
    run_service(main, log_level="loud" if os.environ["PROGRAM"] == "bad_log_level" else "info", service="test")

"""`python -m wan`: the WAN link emulator as a process."""

from __future__ import annotations

import asyncio
from random import Random

from pdd.rpc.run import read_settings, run_service
from pdd.telemetry import get_logger
from wan.config import WanSettings
from wan.control import serve_control
from wan.relay import Relay

log = get_logger(__name__)


def main() -> None:
    settings = read_settings(WanSettings, "wan")

    async def run(stop: asyncio.Event) -> None:
        link = settings.link()
        async with (
            Relay(link, settings.forward_host, Random(settings.seed)) as relay,
            serve_control(relay, settings.control_listen) as address,
        ):
            log.info("WAN relay is up", control=address, rate_mbit=link.rate_mbit, rtt_ms=link.rtt_ms)
            await stop.wait()

    run_service(run, log_level=settings.log_level, service="wan")


if __name__ == "__main__":
    main()

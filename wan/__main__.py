"""`python -m wan`: the WAN link emulator as a process."""

from __future__ import annotations

import asyncio
from random import Random

from pdd.rpc.errors import StartupError
from pdd.rpc.run import read_settings, run_service
from pdd.telemetry import get_logger
from wan.config import WanSettings
from wan.control import serve_control
from wan.relay import ForwardRefused, Relay

log = get_logger(__name__)


def main() -> None:
    settings = read_settings(WanSettings, "wan")

    async def run(stop: asyncio.Event) -> None:
        link = settings.link()
        async with (
            Relay(link, settings.forward_host, Random(settings.seed)) as relay,
            serve_control(relay, settings.control_listen) as address,
        ):
            if settings.registry_listen and settings.registry_target:
                await _open_registry(relay, settings.registry_target, settings.registry_listen)
            log.info("WAN relay is up", control=address, rate_mbit=link.rate_mbit, rtt_ms=link.rtt_ms)
            await stop.wait()

    run_service(run, log_level=settings.log_level, service="wan")


async def _open_registry(relay: Relay, target: str, listen: str) -> None:
    try:
        await relay.open_from_b("registry", target, listen)
    except (ForwardRefused, ValueError) as error:
        raise StartupError(f"the registry can't be forwarded: {error}") from error


if __name__ == "__main__":
    main()

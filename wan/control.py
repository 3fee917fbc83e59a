"""The relay's control API: JSON over HTTP, and what Prometheus asks for.

    GET    /health            200 while the relay runs
    GET    /link              the line's settings
    PATCH  /link              change some of them: rate_mbit, rtt_ms, jitter_ms, loss, outage
    POST   /forwards          {"name", "target"} → {"name", "address"}
    DELETE /forwards/{name}   204; its connections are reset
    GET    /counters          bytes by forward, connection and direction
    GET    /metrics           the same by forward, and the line, for Prometheus

An error is {"error": "…"} with 400 for a bad body, 404 for an unknown name, 409 where a port can't be had. Owns no state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdd.rpc.http import listening
from wan.link import LinkSettings, Outage
from wan.metrics import LinkState
from wan.relay import ForwardRefused, Relay

MAX_BODY_BYTES = 16 << 10

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LinkPatch(BaseModel):
    """Fields left out stay as they are; the bounds are LinkSettings'."""

    model_config = ConfigDict(extra="forbid")

    rate_mbit: float | None = None
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    outage: Outage = Outage.NONE


class ForwardRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=64)]
    target: str


BodyT = TypeVar("BodyT", bound=BaseModel)


@asynccontextmanager
async def serve_control(relay: Relay, listen: str) -> AsyncIterator[str]:
    """Serve the API on `listen` ("host:port", port 0 for any) until the context is left; yields the bound "host:port".

    Raises ListenError.
    """
    async with listening(web.AppRunner(make_app(relay), access_log=None, shutdown_timeout=1.0), listen) as address:
        yield address


def make_app(relay: Relay) -> web.Application:
    control = _Control(relay)
    app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/health", control.health)
    app.router.add_get("/link", control.get_link)
    app.router.add_patch("/link", control.patch_link)
    app.router.add_post("/forwards", control.post_forward)
    app.router.add_delete("/forwards/{name}", control.delete_forward)
    app.router.add_get("/counters", control.get_counters)
    app.router.add_get("/metrics", control.get_metrics)
    return app


class _Control:
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._metrics = CollectorRegistry()
        self._metrics.register(LinkState(relay))

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def get_link(self, _: web.Request) -> web.Response:
        return web.json_response(_link_json(self._relay.settings))

    async def patch_link(self, request: web.Request) -> web.Response:
        patch = await _body(request, LinkPatch)
        changed = {name: getattr(patch, name) for name in patch.model_fields_set}
        try:
            settings = dataclasses.replace(self._relay.settings, **changed)
        except ValueError as error:
            raise _BadRequest(str(error)) from error
        await self._relay.configure(settings)
        return web.json_response(_link_json(settings))

    async def post_forward(self, request: web.Request) -> web.Response:
        wanted = await _body(request, ForwardRequest)
        try:
            address = await self._relay.lease(wanted.name, wanted.target)
        except ValueError as error:
            raise _BadRequest(str(error)) from error
        return web.json_response({"name": wanted.name, "address": address})

    async def delete_forward(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not await self._relay.release(name):
            return web.json_response({"error": f"there is no forward {name!r}"}, status=404)
        return web.Response(status=204)

    async def get_counters(self, _: web.Request) -> web.Response:
        return web.json_response(dataclasses.asdict(self._relay.counters()))

    async def get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _BadRequest(Exception):
    """The body can't be used; the text says why."""


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _BadRequest as error:
        return web.json_response({"error": str(error)}, status=400)
    except ForwardRefused as error:
        return web.json_response({"error": str(error)}, status=409)
    except web.HTTPException as error:
        return web.json_response({"error": f"{request.method} {request.path}: {error.reason}"}, status=error.status)


async def _body(request: web.Request, kind: type[BodyT]) -> BodyT:
    try:
        return kind.model_validate_json(await request.read())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise _BadRequest(f"{where}: {first['msg']}") from error


def _link_json(settings: LinkSettings) -> dict[str, Any]:
    fields = dataclasses.asdict(settings)
    return fields | {"outage": settings.outage.value}

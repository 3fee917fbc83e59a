"""The HTTP server of the OpenAI-compatible API: routes, the one place where errors become replies, listening.

Called by the gateway's entry point. Leaving `serve_http` ends the answers in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.clients import ClientLeft
from gateway.openai.api import ARRIVED_S, LABEL, OUTCOME, REQUEST_ID_HEADER, Api, label_of
from gateway.openai.chat import ChatCompletions
from gateway.openai.completions import Completions
from gateway.openai.errors import CLIENT_LEFT, ErrorReply, reply_for
from gateway.openai.health import Health
from gateway.openai.models import Models
from pdd.rpc.http import listening
from pdd.telemetry import get_logger

MAX_BODY_BYTES = 4 << 20
STOP_GRACE_S = 0.5  # time that answers in progress have to end by themselves

log = get_logger(__name__)


def build_app(api: Api, max_body_bytes: int = MAX_BODY_BYTES) -> web.Application:
    chat, completions, models, health = ChatCompletions(api), Completions(api), Models(api), Health(api)
    app = web.Application(client_max_size=max_body_bytes, middlewares=[_replies(api)])
    app.on_response_prepare.append(_name_request)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.post),
            web.post("/v1/completions", completions.post),
            web.get("/v1/models", models.list),
            web.get("/v1/models/{id:.+}", models.one),
            web.get("/health", health.health),
            web.get("/ready", health.ready),
            web.get("/metrics", health.metrics),
        ]
    )
    return app


@asynccontextmanager
async def serve_http(listen: str, app: web.Application, *, shares_port: bool = False) -> AsyncIterator[str]:
    """Serve on `listen` ("host:port", port 0 for any) until left; gives the address with its real port. Raises ListenError.

    `shares_port` is that of `pdd.rpc.server.serve`.
    """
    # Handlers are cancelled when their client goes away: that is how the mesh hears of it.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_GRACE_S)
    async with listening(runner, listen, shares_port=shares_port) as address:
        yield address


def _replies(api: Api) -> Middleware:
    metrics = api.answers.metrics

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        now_s = asyncio.get_running_loop().time
        request[ARRIVED_S] = now_s()
        request[LABEL] = label_of(request, api.new_id)
        route = _route_of(request)
        metrics.request_began(route)
        outcome = CLIENT_LEFT  # what stays where this task is cancelled
        try:
            response = await _reply(request, handler)
            outcome = request.get(OUTCOME, response.status)
            return response
        finally:
            metrics.request_ended(route, str(outcome), now_s() - request[ARRIVED_S])

    return middleware


async def _reply(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ClientLeft as error:
        log.info("the client went away", request=request[LABEL], reason=str(error))
        # Nobody reads it; aiohttp wants a response to find the connection closed with.
        return web.Response(status=CLIENT_LEFT, reason="client left")
    except Exception as error:
        reply = reply_for(error)
        if reply.status >= 500:
            unknown = reply.code == "internal_error"
            log.error("a request failed", request=request[LABEL], reason=str(error), exc_info=error if unknown else None)
        return _response(reply)


def _response(reply: ErrorReply) -> web.Response:
    return web.Response(
        status=reply.status, headers=reply.headers, body=orjson.dumps(reply.body()), content_type="application/json"
    )


async def _name_request(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[REQUEST_ID_HEADER] = request[LABEL]


def _route_of(request: web.Request) -> str:
    """The route's pattern, so that a metric's labels stay few whatever paths clients try."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"

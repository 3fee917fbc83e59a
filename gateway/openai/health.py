"""GET /health, /ready and /metrics: for whoever runs the gateway.

Called by aiohttp. Alive is not ready: the process answers /health at once, /ready only while every role it needs has an instance.
"""

from __future__ import annotations

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gateway.openai.api import Api


class Health:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def health(self, _request: web.Request) -> web.Response:
        return _status(200, {"status": "alive"})

    async def ready(self, _request: web.Request) -> web.Response:
        missing = self._api.answers.generator.missing_roles()
        if missing:
            return _status(503, {"status": "not ready", "missing": list(missing)})
        degraded = self._api.answers.generator.degraded()
        return _status(200, {"status": "ready"} | ({"degraded": list(degraded)} if degraded else {}))

    async def metrics(self, _request: web.Request) -> web.Response:
        page = generate_latest(self._api.answers.metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _status(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")

"""GET /v1/models and /v1/models/{id}.

Called by aiohttp. While a role is missing the list is empty: a client that waits for a model waits for a mesh that serves.
"""

from __future__ import annotations

import orjson
from aiohttp import web

from gateway.generation import MeshError, MeshErrorCode
from gateway.openai.api import Api


class Models:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._created = int(api.unix_time_s())

    async def list(self, _request: web.Request) -> web.Response:
        served = [] if self._api.answers.generator.missing_roles() else [self._model()]
        return _json({"object": "list", "data": served})

    async def one(self, request: web.Request) -> web.Response:
        self._api.prompting.check_model(request.match_info["id"])
        if missing := self._api.answers.generator.missing_roles():
            raise MeshError(MeshErrorCode.NO_INSTANCE, f"No healthy instance of: {', '.join(missing)}.")
        return _json(self._model())

    def _model(self) -> dict[str, object]:
        prompting = self._api.prompting
        return {
            "id": prompting.card.name,
            "object": "model",
            "created": self._created,
            "owned_by": "pdd",
            "max_model_len": prompting.context_tokens,
        }


def _json(body: dict[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

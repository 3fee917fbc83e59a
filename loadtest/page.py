"""A tab of locust's web page with the table of a mesh: one row for each kind of user, the shares of the pipelines behind them.

Called once, where there is a web page. locust asks it for the values together with its own.
"""

from __future__ import annotations

import json

from flask import Response, request
from locust.stats import RequestStats
from locust.web import WebUI

from loadtest.table import HEAD, pipeline_shares, rows

TAB = "mesh"
PIPELINES = "pipelines"
_STATISTICS = "/stats/requests"


def add_tabs(page: WebUI) -> None:
    tables = {TAB: ("Mesh", HEAD), PIPELINES: ("Pipelines", ("pipeline", "answers", "share"))}
    page.template_args["extended_tabs"] = [{"title": title, "key": key} for key, (title, _) in tables.items()]
    page.template_args["extended_tables"] = [
        {"key": key, "structure": [{"key": name, "title": name} for name in head]} for key, (_, head) in tables.items()
    ]

    def add_values(response: Response) -> Response:
        if request.path == _STATISTICS and response.is_json:
            body = response.get_json() | {"extended_stats": values(page.environment.stats)}
            response.set_data(json.dumps(body))
        return response

    assert page.app is not None
    page.app.after_request(add_values)


def values(stats: RequestStats) -> list[dict[str, object]]:
    """Of both tables, as the page wants them."""
    shares = [
        {"pipeline": name, "answers": count, "share": f"{share:.1%}"} for name, (count, share) in pipeline_shares(stats).items()
    ]
    return [{"key": TAB, "data": [dict(zip(HEAD, row, strict=True)) for row in rows(stats)]}, {"key": PIPELINES, "data": shares}]

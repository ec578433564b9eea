"""MLflow's server, for its own pages only: `python -m flows.servers.tracking_server --host …` takes
the options of `mlflow server`.

MLflow lets pages of any port of localhost use the password that the browser remembers, and other
users can serve such pages. Here a request must come from a page of the host and port it goes to.
"""

import importlib
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

APP = (  # MODULE:NAME that `mlflow server` would serve; a factory if it ends in ()
    "THROUGHLINE_MLFLOW_APP"
)
OURS = "flows.servers.tracking_server:create_app"
REFUSAL = b"This server answers its own pages and programs, not pages of other addresses."

Scope = MutableMapping[str, Any]
Application = Callable[
    [Scope, Any, Callable[[MutableMapping[str, Any]], Awaitable[None]]], Awaitable[None]
]


def is_foreign(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a page of another origin sent a request, except by following a link."""
    known = {name.lower(): value.decode("latin-1") for name, value in headers}
    origin, site = known.get(b"origin"), known.get(b"sec-fetch-site", "none")
    if origin is not None and urlsplit(origin).netloc != known.get(b"host", ""):
        return True
    return site in ("cross-site", "same-site") and known.get(b"sec-fetch-mode") != "navigate"


def refuse_foreign_pages(app: Application) -> Application:
    """Wrap an ASGI application so that it does not see requests of foreign pages."""

    async def answer(
        scope: Scope, receive: Any, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]
    ) -> None:
        if scope["type"] not in ("http", "websocket") or not is_foreign(scope["headers"]):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})

    return answer


def create_app() -> Application:
    """Return the application that `mlflow server` would serve, for its own pages only."""
    module, _, name = os.environ[APP].partition(":")
    found = getattr(importlib.import_module(module), name.removesuffix("()"))
    return refuse_foreign_pages(found() if name.endswith("()") else found)


def main() -> None:
    """Run `mlflow server` with the application of `create_app`, in uvicorn's own processes."""
    # Its jobs, which evaluate language models, need eight processes of 240 MB, and run any code.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    import mlflow.server
    from mlflow.cli import cli

    build = mlflow.server._build_uvicorn_command

    def with_own_pages_only(*given: Any, **options: Any) -> Any:
        call = signature(build).bind(*given, **options)
        app, is_factory = call.arguments["app_name"], call.arguments.get("is_factory")
        os.environ[APP] = f"{app}()" if is_factory else app
        call.arguments |= {"app_name": OURS, "is_factory": True}
        return build(*call.args, **call.kwargs)

    mlflow.server._build_uvicorn_command = with_own_pages_only
    cli.main(args=["server", *sys.argv[1:]], prog_name="mlflow")


if __name__ == "__main__":
    main()

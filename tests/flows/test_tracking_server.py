"""Which requests of a browser MLflow gets to see."""

from __future__ import annotations

import asyncio

import pytest

from flows.servers.tracking_server import SHOW_RUNS, is_foreign, own_pages_only, show_runs_first

HOST = (b"host", b"127.0.0.1:5000")
OWN = {"origin": "http://127.0.0.1:5000"}
CASES = [
    ({}, False, "a program"),
    (OWN, False, "its own page"),
    (OWN | {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, False, "its own page"),
    ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False, "an address, typed"),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False, "a link, followed"),
    ({"origin": "http://localhost:5000"}, True, "another name of the machine"),
    ({"origin": "http://127.0.0.1:9999"}, True, "another port"),
    ({"origin": "null"}, True, "a sandboxed frame"),
    ({"origin": "http://evil.example"}, True, "another site"),
    ({"origin": "http://evil.example/127.0.0.1:5000"}, True, "another site"),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True, "its picture or script"),
    ({"Sec-Fetch-Site": "same-site", "sec-fetch-mode": "cors"}, True, "another port, no origin"),
]


@pytest.mark.parametrize(("headers", "foreign", "who"), CASES)
def test_requests_of_foreign_pages_are_told_apart(headers, foreign, who):
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert is_foreign([HOST, *sent]) is foreign, who


@pytest.mark.parametrize("kind", ["http", "websocket", "lifespan"])
def test_the_application_sees_none_of_them(kind):
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "headers": [HOST, (b"origin", b"http://evil.example")]}
    asyncio.run(own_pages_only(app)(scope, None, send))
    assert (
        (seen == ["lifespan"] and not sent)
        if kind == "lifespan"
        else (not seen and {403, 1008} & {sent[0].get("status"), sent[0].get("code")})
    )


@pytest.mark.parametrize(
    ("path", "status", "shown"), [("/", 200, True), ("/", 401, False), ("/health", 200, False)]
)
def test_the_page_alone_begins_with_runs(path, status, shown):
    asked, sent = [], []

    async def app(scope, receive, send):
        asked.append(scope["headers"])
        sizes = [(b"Content-Length", b"6"), (b"etag", b"x")]
        await send({"type": "http.response.start", "status": status, "headers": sizes})
        await send({"type": "http.response.body", "body": b"<html>", "more_body": True})
        await send({"type": "http.response.body"})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"If-None-Match", b"x")]}
    asyncio.run(show_runs_first(app)(scope, None, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert body == b"<html>" + (SHOW_RUNS if shown else b"")
    assert bool(sent[0]["headers"]) is not shown
    assert bool(asked[0]) is (path != "/")

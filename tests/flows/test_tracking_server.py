"""Which requests of a browser MLflow gets to see."""

from __future__ import annotations

import asyncio

import pytest

from flows.servers.tracking_server import SHOW_RUNS, is_foreign, own_pages_only, show_runs_first

HOST = (b"host", b"127.0.0.1:5000")
CASES = [
    ([], False, "a program"),
    ([(b"origin", b"http://127.0.0.1:5000")], False, "its own page"),
    (
        [
            (b"origin", b"http://127.0.0.1:5000"),
            (b"sec-fetch-site", b"same-origin"),
            (b"sec-fetch-mode", b"cors"),
        ],
        False,
        "its own page",
    ),
    (
        [(b"sec-fetch-site", b"none"), (b"sec-fetch-mode", b"navigate")],
        False,
        "an address that was typed",
    ),
    (
        [(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")],
        False,
        "a link that was followed",
    ),
    ([(b"origin", b"http://localhost:5000")], True, "another name of the machine"),
    ([(b"origin", b"http://127.0.0.1:9999")], True, "another port"),
    ([(b"origin", b"null")], True, "a sandboxed frame"),
    ([(b"origin", b"http://evil.example")], True, "another site"),
    ([(b"origin", b"http://evil.example/127.0.0.1:5000")], True, "another site"),
    (
        [(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"no-cors")],
        True,
        "a picture or script of another site",
    ),
    (
        [(b"Sec-Fetch-Site", b"same-site"), (b"sec-fetch-mode", b"cors")],
        True,
        "another port, without an origin",
    ),
]


@pytest.mark.parametrize(("headers", "foreign", "who"), CASES)
def test_requests_of_foreign_pages_are_told_apart(headers, foreign, who):
    assert is_foreign([HOST, *headers]) is foreign, who


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

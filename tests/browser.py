"""A real browser for tests of what people see. Pictures go to the folder that SCREENSHOTS names, where one is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SLOWEST_MS = 60_000
expect.set_options(timeout=SLOWEST_MS)


@contextmanager
def browsing(user: tuple[str, str] | None = None) -> Iterator[Page]:
    """A page of headless Chromium, which says who it is where it is asked; skips loudly where there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NO BROWSER: nothing that people see was looked at; install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        known = {"username": user[0], "password": user[1]} if user else None
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, http_credentials=known)
        page.set_default_timeout(SLOWEST_MS)
        yield page
        browser.close()


def picture(page: Page, name: str) -> None:
    """Keep what the page shows now, where pictures are asked for."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.wait_for_timeout(2000)  # for pictures and charts that come late
        page.screenshot(path=Path(folder) / f"{name}.png")

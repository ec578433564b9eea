"""A real browser for tests of what people see; pictures go to the folder SCREENSHOTS, if set."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.skips import need

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SLOWEST_MS = 60_000
expect.set_options(timeout=SLOWEST_MS)


@contextmanager
def browsing(user: tuple[str, str] | None = None) -> Iterator[Page]:
    """A page of headless Chromium, which says who it is where it is asked; needs Chromium."""
    need("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        known = {"username": user[0], "password": user[1]} if user else None
        page = browser.new_context(
            viewport={"width": 1400, "height": 1000}, http_credentials=known
        ).new_page()
        page.set_default_timeout(SLOWEST_MS)
        yield page
        browser.close()


def sign_in(page: Page, server: str, user: tuple[str, str]) -> None:
    """Say who one is to Prefect's UI, as a person does."""
    page.goto(f"{server}/login")
    page.locator("input").first.fill(":".join(user))
    page.get_by_role("button", name="Login").click()
    page.wait_for_url(lambda url: "login" not in url)


def picture(page: Page, name: str) -> None:
    """Keep what the page shows now, where pictures are asked for."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.wait_for_timeout(2000)  # for pictures and charts that come late
        page.screenshot(path=Path(folder) / f"{name}.png")

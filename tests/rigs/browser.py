"""A headless browser that draws by software, for tests that look at a page."""

import io
import shutil
import tempfile
import time
from contextlib import contextmanager

import numpy as np
import pytest

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = """
    --headless=new --no-sandbox --use-angle=swiftshader --enable-unsafe-swiftshader --disable-quic
    --no-first-run --disable-background-networking --disable-component-update --disable-sync
    --disable-dev-shm-usage
"""
DEADLINE_S = 20


def missing():
    """Return the program that is not installed, if there is one."""
    return next((each for each in (CHROMIUM, DRIVER) if shutil.which(each) is None), None)


@contextmanager
def headless(width=500, height=500):
    """Start a browser with a window of that many pixels."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS.split(), f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


@pytest.fixture(scope="module")
def browser():
    """A browser; needs chromium and its driver."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if program := missing():
        pytest.skip(f"{program} is not installed; apt-get install chromium chromium-driver")
    with headless() as driver:
        yield driver


def pixels(browser):
    """Return what is seen: (row, column, 3), red, green, blue."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"))


def look(browser, judge, wanted):
    """Return what *judge* makes of the pixels: *wanted* as soon as it is so, else the last."""
    deadline = time.monotonic() + DEADLINE_S
    seen = None
    while seen != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
        seen = judge(pixels(browser))
    return seen

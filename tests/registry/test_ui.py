"""Promotion by hand in MLflow's own UI, in a real browser, and what the controller makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support import expected_conditions as that
from selenium.webdriver.support.ui import WebDriverWait

import processkit
from deploykit import World
from greenroom import versions
from greenroom.deploy import controller
from greenroom.deploy.local import LocalDeployer

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not here"),
]

DEPLOYMENTS = """
[[deployment]]
model = "tiny"
stage = "Production"
endpoint = "by-stage"

[[deployment]]
model = "tiny"
alias = "champion"
endpoint = "by-alias"
"""

# With this switch on, the default, the UI hides stages (aliases remain); off, it shows them.
OLD_UI = "localStorage.setItem('_mlflow_user_setting_dismiss_next_model_registry_ui', 'true')"
ALIASES = "[data-component-id*='modelversionviewaliaseditor']"


@pytest.fixture
def server(world: World, store: Path) -> Iterator[str]:
    """An MLflow server over the test's store."""
    port = processkit.free_port()
    uri = f"http://127.0.0.1:{port}"
    command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    backend = ["--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, *command, *backend],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        processkit.until(lambda: _healthy(port), "MLflow's server answers", 180)
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        mlflow.set_experiment("in-the-ui")
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _healthy(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Headless Chromium with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "no-first-run", "window-size=1600,1200"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        f"user-data-dir={tmp_path / 'chromium'}",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def _click(browser: webdriver.Chrome, css: str = "", text: str = "") -> None:
    """Clicks the element of a selector or an XPath, once it can be clicked."""
    by = (By.CSS_SELECTOR, css) if css else (By.XPATH, text)
    WebDriverWait(browser, 60).until(that.element_to_be_clickable(by)).click()


def _serving(endpoint: str) -> str:
    found = {state.endpoint: state.version for state in LocalDeployer().observe()}
    return found.get(endpoint, "")


def test_a_promotion_in_the_ui_by_alias_and_by_stage_is_deployed(
    world: World, server: str, browser: webdriver.Chrome
) -> None:
    world.deployments(DEPLOYMENTS)
    world.version(1, accuracy=0.9)
    assert controller.watch(world.file, once=True) == 0
    assert (_serving("by-alias"), _serving("by-stage")) == ("", "")

    browser.get(f"{server}/#/models/tiny/versions/1")
    _click(browser, css=ALIASES)
    field = (By.CSS_SELECTOR, "[role=dialog] input")
    box = WebDriverWait(browser, 60).until(that.presence_of_element_located(field))
    box.send_keys("champion", Keys.ENTER)
    _click(browser, text="//*[@role='dialog']//button[contains(., 'Save')]")
    processkit.until(lambda: versions.look("tiny").aliases == {"champion": "1"}, "the alias is set")
    assert controller.watch(world.file, once=True) == 0
    assert (_serving("by-alias"), _serving("by-stage")) == ("1", "")

    browser.execute_script(OLD_UI)
    browser.refresh()
    _click(browser, text="//*[normalize-space(text()) = 'None']")
    _click(browser, css="[role=menuitem][data-menu-id$='transition-to-Production']")
    _click(browser, css="[data-component-id$='stage_transition_modal_v2.footer.ok']")
    processkit.until(lambda: versions.get("tiny", 1).stage == "Production", "the stage is set")
    assert controller.watch(world.file, once=True) == 0
    assert (_serving("by-alias"), _serving("by-stage")) == ("1", "1")

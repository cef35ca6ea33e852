"""A page in a browser: no error, no request, and no scrolling sideways on a phone."""

import re
import shutil
import subprocess

import pytest

from memjax.report.page import make_page
from tests.report.page_test import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0")
WIDE = """<!doctype html><title>frame</title><iframe id="frame" style="width:{width}px;height:900px" src="page.html">
</iframe><script>onload = function () {{
  var page = document.getElementById("frame").contentDocument, root = page.documentElement;
  page.getElementById("theme").click();
  page.querySelector(".words span[title]").click();
  document.title = [root.scrollWidth, root.clientWidth, root.dataset.theme,
    page.querySelector(".note").textContent.length].join(" ");
}}</script>"""
"""a page in a frame as wide as a screen, which is asked how wide it is, and whether its buttons work"""


def opened(path, *options):
    """What a browser makes of a page, and what it says to that."""
    command = [str(BROWSER), *OPTIONS, "--allow-file-access-from-files", *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(make_page(report()), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_has_nothing_to_say_and_asks_for_nothing(folder):
    # Nothing can be reached, so that a request would be an error in the console.
    dom, said = opened(folder / "page.html", "--host-resolver-rules=MAP * ~NOTFOUND", "--dns-prefetch-disable")
    assert "</svg>" in dom and 'id="panel"' in dom
    assert not re.findall(r"CONSOLE.*|ERR_\w+|Refused to .*", said)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_page_is_as_wide_as_the_screen_and_its_buttons_work(folder, width):
    frame = folder / f"frame_{width}.html"
    frame.write_text(WIDE.format(width=width), encoding="utf-8")
    dom, said = opened(frame, "--virtual-time-budget=4000")
    whole, screen, theme, note = re.findall(r"<title>(\d+) (\d+) (\w+) (\d+)</title>", dom)[0]
    assert int(whole) <= int(screen) and theme in ("light", "dark") and int(note) > 10
    assert not re.findall(r"CONSOLE.*", said)

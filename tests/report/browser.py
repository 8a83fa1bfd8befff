"""Opens a page in a headless Chromium, runs a script in it, and returns what the script found."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
needs_browser = pytest.mark.skipif(
    _BROWSER is None, reason="no Chromium here; apt-get install chromium brings one"
)
# Whatever goes wrong in the page itself, heard from its first script on.
_LISTEN = """<script>
var faults = [];
window.onerror = function (message) { faults.push(String(message)); };
["error", "warn"].forEach(function (kind) {
  console[kind] = function () { faults.push(kind + ": " + Array.from(arguments).join(" ")); };
});
document.addEventListener("securitypolicyviolation", function (event) {
  faults.push("refused: " + event.violatedDirective);
});
</script>"""
_TELL = """<script>
var found = {};
try { (function (found) { %s })(found); } catch (error) { faults.push(String(error)); }
parent.postMessage(JSON.stringify({ found: found, faults: faults }), "*");
</script></body>"""
# No window of a headless Chromium is narrower than 500 pixels, but a frame in it may be.
_FRAME = """<!DOCTYPE html><html><body><pre id="told"></pre><script>
addEventListener("message", function (event) {
  document.getElementById("told").textContent = event.data;
});
</script><iframe src="page.html" style="border:0;width:%dpx;height:900px"></iframe></body></html>"""


def look(page: str, script: str, folder: Path, width: int = 1200) -> dict[str, Any]:
    """Return the object ``found`` that ``script`` fills in the page; no fault may be heard.

    Args:
        page: The page's text.
        script: JavaScript that runs after the page's own scripts.
        folder: Folder for the page and the browser's profile.
        width: Width of the page in pixels.
    """
    assert _BROWSER is not None
    folder.mkdir(parents=True, exist_ok=True)
    frame = folder / "frame.html"
    frame.write_text(_FRAME % width)
    text = page.replace("<head>", f"<head>{_LISTEN}", 1)
    (folder / "page.html").write_text(text.replace("</body>", _TELL % script), errors="replace")
    command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1280,1000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=os.environ | {"HOME": str(folder)},
    )
    (told,) = re.findall(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    whole = json.loads(html.unescape(told))
    assert whole["faults"] == []
    return dict(whole["found"])

"""A real browser without a window: what it makes of a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="it takes a browser")
COMMAND = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
# A frame may be narrower than a window of Chromium's.
_FRAME = """<!doctype html><meta charset="utf-8"><pre id="found">nothing</pre><script>
const found = {};
const all = %s.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const right = [...page.body.querySelectorAll("*")].filter(
      e => e.getBoundingClientRect().right > root.clientWidth + 0.5).map(e => e.tagName);
    found[width] = [root.scrollWidth, root.clientWidth, right];
    done();
  };
  frame.src = %s; document.body.append(frame);
}));
Promise.all(all).then(() => {
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


def visited(url: str, *options: str, seconds: int = 120) -> tuple[str, list[str]]:
    """Return a page as it is after its scripts ran, and what the console says."""
    done = subprocess.run(
        [*COMMAND, "--enable-logging=stderr", *options, "--dump-dom", url],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds,
    )
    return done.stdout, re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr)


def overflows(file: Path, widths: Sequence[int]) -> dict[int, tuple[int, int, list[str]]]:
    """Return for each width how wide a page is, may be, and what sticks out of it."""
    (file.parent / "frame.html").write_text(_FRAME % (list(widths), json.dumps(file.name)))
    with _served(file.parent) as address:
        shown, _ = visited(f"{address}/frame.html", "--virtual-time-budget=30000")
    found = re.search(r'<pre id="found">(.*?)</pre>', shown)
    assert found is not None
    return {int(width): tuple(measured) for width, measured in json.loads(found[1]).items()}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *given: _Quiet(*given, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

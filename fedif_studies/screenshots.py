"""The pictures of the page of `fedif watch`: a small federation, and a browser without a window.

Eight clinics train on the digits. One has half of its labels wrong, one is not reached from round
5 to 11. Chromium draws the page in the middle of round 8, wide and on a phone in the dark, and at
the end. Times on the pictures are those of the run; all else is the same each time.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from PIL import Image

from fedif_flower.client.app import task_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.live_state import SECONDS_PER_WRITE
from fedif_flower.run.watch.page import render_file
from fedif_flower.run.watch.reader import RunReader
from fedif_flower.run.watch.state import Watched
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.statement.bundle import make_statement
from fedif_flower.statement.signing import load_or_make_key
from fedif_flower.strategies.callbacks import Callback, Question

CLINICS = ("Aarhus", "Bergen", "Cork", "Dijon", "Espoo", "Fulda", "Graz", "Halle")
ABSENT, GONE, BACK = CLINICS.index("Fulda"), 5, 12
ROUNDS, LOOKED_AT, ANSWERED = 20, 8, 3
WIDE, PHONE = (1240, 1270), (390, 1480)
_BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_DARK = "--blink-settings=preferredColorScheme=0"


class Clinics(LocalGrid):
    """Nodes with names, one of which is not reached for some rounds."""

    def __init__(self) -> None:
        super().__init__(task_app(), len(CLINICS))
        self.is_gone = False

    def get_node_ids(self) -> list[int]:
        """Return who is reached."""
        gone = {FIRST_NODE_ID + ABSENT} if self.is_gone else set()
        return [node_id for node_id in super().get_node_ids() if node_id not in gone]

    def get_nodes(self) -> Any:
        """Return what the operator calls them."""
        named = zip(super().get_node_ids(), CLINICS, strict=True)
        return [SimpleNamespace(node_id=i, name=name) for i, name in named]


class Operator(Callback):
    """Lets a clinic go and come back, and looks at the page in the middle of a round."""

    def __init__(self, grid: Clinics, look: Callable[[], None]) -> None:
        self._grid = grid
        self._look = look
        self._answered = 0

    def on_asked(self, question: Question) -> None:  # noqa: ARG002
        """Begin a round."""
        self._answered = 0

    def on_reply(self, server_round: int, node: ClientNode, *, failed: bool) -> None:  # noqa: ARG002
        """Look at the page once some have answered."""
        self._answered += 1
        if (server_round, self._answered) == (LOOKED_AT, ANSWERED):
            time.sleep(2 * SECONDS_PER_WRITE)  # The run's own word is there by then.
            self._look()

    def on_round_end(self, server_round: int) -> None:
        """Say who is reached in the next round."""
        self._grid.is_gone = GONE <= server_round + 1 < BACK


def take(output_dir: Path) -> list[Path]:
    """Run the federation and draw the pages; return the pictures."""
    with tempfile.TemporaryDirectory() as place:
        config = RunConfig.from_run_config(
            default_run_config()
            | {
                "num-clients": len(CLINICS),
                "fraction-train": 1.0,
                "num-server-rounds": ROUNDS,
                "local-epochs": 1,
                "attribution": "simpson",
                "attack": "label-noise",
                "malicious-fraction": 1 / len(CLINICS),
                "device": "cpu",
                "output-dir": place,
                "run-name": "october",
            }
        )
        folder = RunFolder(config.run_dir)
        during, after = Path(place, "during.html"), Path(place, "after.html")

        def look(file: Path) -> None:
            run = Watched(RunReader(folder).read(), time.time())
            file.write_text(render_file(run, folder.path, file))

        grid = Clinics()
        with torch_threads(1):
            run_federation(grid, config, callbacks=[Operator(grid, lambda: look(during))])
        make_statement(folder.path, load_or_make_key(Path(place, "key.pem")))
        look(after)
        output_dir.mkdir(parents=True, exist_ok=True)
        pictures = [
            (during, "watch-running.png", WIDE, ()),
            (during, "watch-phone.png", PHONE, (_DARK,)),
            (after, "watch-finished.png", WIDE, ()),
        ]
        return [draw(page, output_dir / name, size, *more) for page, name, size, more in pictures]


def draw(page: Path, picture: Path, size: tuple[int, int], *options: str) -> Path:
    """Draw a page in a browser; colours are few, so that the file is small.

    Raises
    ------
    ConfigError
        If there is no Chromium.
    """
    width, height = size
    # A frame may be narrower than a window.
    frame = page.with_name(f"frame-{picture.stem}.html")
    frame.write_text(
        f'<body style="margin:0"><iframe src="{page.name}" '
        f'style="border:0;width:{width}px;height:{height}px;color-scheme:light dark"></iframe>'
    )
    shown = page.with_name(picture.name)
    command = [*_BROWSER, *options, f"--window-size={max(width, 500)},{height}"]
    try:
        subprocess.run(
            [*command, f"--screenshot={shown}", frame.as_uri()], check=True, capture_output=True
        )
    except FileNotFoundError:
        raise ConfigError("Chromium is missing: install it, so that pages can be drawn") from None
    image = Image.open(shown).convert("RGB").crop((0, 0, width, height))
    content = BytesIO()
    image.quantize(128).save(content, "PNG", optimize=True)
    picture.write_bytes(content.getvalue())
    return picture


def main(
    output_dir: Annotated[Path, typer.Option(help="where pictures go")] = Path("docs/tutorial"),
) -> None:
    """Take the pictures of the operator's tutorial again."""
    for picture in take(output_dir):
        typer.echo(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)

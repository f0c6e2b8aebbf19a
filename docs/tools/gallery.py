"""The notebooks with what they print, as pages of the site; the pictures of the gallery.

``python docs/tools/gallery.py`` runs the notebooks again, writes their outputs into them, and draws
the small pictures of ``docs/examples/`` from what the notebooks showed and from each example's own
picture.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = REPOSITORY / "examples" / "notebooks"
GALLERY = REPOSITORY / "docs" / "examples"
PICTURE = "image/png"
_WIDTH = 360  # pixels of a small picture
_SECONDS = 600  # that a cell may take on a machine with much else to do


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder and return it with its outputs, and nothing of the machine."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    # Small models: more threads would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    NotebookClient(
        notebook, timeout=_SECONDS, resources={"metadata": {"path": str(folder)}}
    ).execute()
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def read(path: Path) -> Any:
    """Return a notebook as it lies there."""
    return json.loads(path.read_text(encoding="utf-8"))


def render(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if PICTURE in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode("".join(data[PICTURE]))
                parts.append(f"![What the cell above draws]({file})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def _draw(picture: bytes | Path, target: Path) -> None:
    """Write a picture in the gallery's size; its colours are few, so that the file is small."""
    from PIL import Image

    image = Image.open(BytesIO(picture) if isinstance(picture, bytes) else picture).convert("RGB")
    image.thumbnail((_WIDTH, _WIDTH), Image.Resampling.LANCZOS)
    image.quantize(64).save(target, "PNG", optimize=True)


def main() -> None:
    """Run the notebooks and draw the gallery's pictures."""
    import nbformat

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - began:.0f} s")
        _, pictures = render(read(path), path.stem)
        _draw(next(iter(pictures.values())), GALLERY / f"{path.stem}.png")
    for readme in sorted(REPOSITORY.glob("examples/*/README.md")):
        for name in re.findall(r"!\[[^]]+\]\(([^)]+\.png)\)", readme.read_text()):
            _draw(readme.parent / name, GALLERY / f"{readme.parent.name}.png")


if __name__ == "__main__":
    main()

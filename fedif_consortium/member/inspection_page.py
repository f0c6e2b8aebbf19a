"""The page and the table of an inspection, which stay on the member's host."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import Environment
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from fedif_consortium.member.inspection import Findings
from fedif_consortium.page import PAGE_HEAD
from fedif_flower.storage import make_folder, write_atomically

PAGE, TABLE = "inspection.html", "inspection.csv"
_LONGEST = 400  # Letters of an example.
_PICTURE_SIDE = 96
_OWNER_ALONE = 0o600
COLUMNS = ("rank", "example", "file", "folder", "class", "influence", "loss", "agreement")


class Line(NamedTuple):
    """An example; that of the largest loss has rank 1."""

    rank: int
    example: int
    file: str
    folder: str
    label: str
    influence: float
    loss: float
    agreement: float | None


@dataclass(frozen=True)
class Group:
    """The examples of a class or a folder."""

    name: str
    count: int
    harmful: int
    loss: float


def table_lines(
    findings: Findings, classes: Sequence[str] = (), files: Sequence[Path] | None = None
) -> list[Line]:
    """Return every example, the likeliest mislabelled first.

    Parameters
    ----------
    findings : Findings
        What was found.
    classes : sequence of str
        The names of the classes, if they have any.
    files : sequence of Path, optional
        Each example's.
    """
    lines = []
    for rank, i in enumerate(findings.order.tolist(), start=1):
        label = "" if findings.labels is None else str(int(findings.labels[i]))
        if label and int(label) < len(classes):
            label = classes[int(label)]
        path = None if files is None else files[i]
        lines.append(
            Line(
                rank=rank,
                example=i,
                file="" if path is None else str(path),
                folder="" if path is None else str(path.parent),
                label=label,
                influence=float(findings.influence[i]),
                loss=float(findings.losses[i]),
                agreement=None if findings.agreement is None else float(findings.agreement[i]),
            )
        )
    return lines


def harmful_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the examples that raised the server's loss, the most harmful first."""
    return sorted((line for line in lines if line.influence < 0), key=lambda line: line.influence)


def groups(lines: Sequence[Line], by: str) -> list[Group]:
    """Return the classes (``by = "label"``) or folders of the lines, most harmful share first."""
    members: dict[str, list[Line]] = {}
    for line in lines:
        members.setdefault(getattr(line, by), []).append(line)
    found = [
        Group(
            name,
            len(own),
            sum(line.influence < 0 for line in own),
            sum(line.loss for line in own) / len(own),
        )
        for name, own in members.items()
        if name
    ]
    return sorted(found, key=lambda group: (-group.harmful / group.count, group.name))


def shown(example: Any) -> Markup | str:
    """Return an example as a picture, or in words; whoever puts it on a page escapes the words."""
    if example is None:
        return ""
    if isinstance(example, Tensor):
        values = example.detach().cpu()
        if values.dim() == 3 and values.shape[0] in (1, 3) and values.is_floating_point():
            return _picture(values)
        flat = values.flatten()
        words = ", ".join(f"{value:.4g}" for value in flat[:16].tolist())
        return words + (" ..." if flat.numel() > 16 else "")
    text = str(example)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def _picture(pixels: Tensor) -> Markup:
    """Return an image ``[c, h, w]`` as PNG in the page itself; its own range becomes 0 to 255."""
    finite = pixels.nan_to_num()
    low, high = finite.min(), finite.max()
    if low >= 0 and high <= 1:
        low, high = torch.tensor(0.0), torch.tensor(1.0)
    scaled = ((finite - low) / (high - low).clamp_min(1e-12) * 255).round().byte()
    rows = scaled.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows).save(buffer, "PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return Markup('<img alt="" width="{}" src="data:image/png;base64,{}">').format(
        _PICTURE_SIDE, encoded
    )


def write_inspection(
    folder: Path,
    lines: Sequence[Line],
    examples: Mapping[int, Any],
    rounds: Sequence[int],
    show: int,
) -> tuple[Path, Path]:
    """Write page and table, readable for their owner alone, and return their paths.

    Parameters
    ----------
    folder : Path
        Made if it is not there; an earlier inspection in it is replaced.
    lines : sequence of Line
        All examples.
    examples : mapping of int to Any
        The inputs of those that the page shows.
    rounds : sequence of int
        Whose gradients were used.
    show : int
        So many of the likeliest mislabelled, and of the most harmful.

    Raises
    ------
    StorageError
        If they cannot be written.
    """
    make_folder(folder)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    write_atomically(folder / TABLE, text.getvalue(), _OWNER_ALONE)
    write_atomically(folder / PAGE, page(lines, examples, rounds, show), _OWNER_ALONE)
    return folder / PAGE, folder / TABLE


def page(
    lines: Sequence[Line], examples: Mapping[int, Any], rounds: Sequence[int], show: int
) -> str:
    """Return the page."""
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    labels = {line.label for line in lines}
    return template.render(
        head=Markup(PAGE_HEAD.replace("style-src", "img-src data:; style-src")),
        likely=lines[:show],
        opposed=harmful_lines(lines)[:show],
        shown=lambda line: shown(examples[line.example]),
        count=len(lines),
        harmful=sum(line.influence < 0 for line in lines),
        rounds=rounds,
        # The loss of a model that has no idea, where the loss is that of classes.
        guess=math.log(len(labels)) if lines and lines[0].agreement is not None else None,
        num_classes=len(labels),
        tables=[("Class", groups(lines, "label")), ("Folder", groups(lines, "folder"))],
        table=TABLE,
    )


_TEMPLATE = """{{ head }}<title>Inspection of your own examples</title>
<style>
body { margin: 0 auto; padding: 32px; max-width: 1080px; color: #1b1f24; background: #fff;
  font: 15px/1.5 system-ui, "Liberation Sans", Arial, sans-serif; }
.stays { background: #f5f7f9; border-left: 4px solid #b3341f; padding: 8px 16px; }
table { border-collapse: collapse; margin: 8px 0 20px; font-size: 13.5px; }
th { text-align: left; border-bottom: 1.5px solid #1b1f24; padding: 5px 10px; }
td { padding: 4px 10px; border-bottom: 1px solid #d8dde3; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
ol { list-style: none; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); }
ol li { border: 1px solid #d8dde3; border-radius: 6px; padding: 10px; font-size: 13px;
  overflow-wrap: anywhere; }
ol li.harmful { border-color: #b3341f; }
img { image-rendering: pixelated; display: block; margin-bottom: 6px; }
</style>
</head>
<body>
<h1>Inspection of your own examples</h1>
<p class="stays"><b>This page never leaves your house.</b> It was made on this host, of data that
lie here, and shows them. Nobody was sent anything; the page fetches nothing. Keep it where you
keep the data.</p>
<p>Round after round, the members trained one model together. Here it read your {{ count }} examples
as it stood in round{{ "s" if rounds | length > 1 }} {{ rounds | join(", ") }}. Where it cannot
believe a label, the label may be wrong. Go through the first list from the top:</p>
<ul>
<li>The label is wrong: correct it in your data, or drop the example if you cannot tell.</li>
<li>The label is right, and the example is rare or odd: keep it. The others may need it.</li>
<li>Stop once the labels are right, one after the other. All examples are in {{ table }}, in this
order.</li>
</ul>
{% macro cards(lines) %}<ol>
{% for line in lines %}<li{% if line.influence < 0 %} class="harmful"{% endif %}>{{ shown(line) }}
<div><b>{{ line.rank }}.</b> {% if line.label %}labelled <b>{{ line.label }}</b>{% endif %}</div>
<div>loss {{ "%.3g" | format(line.loss) }}, influence {{ "%.3g" | format(line.influence) }}</div>
{% if line.agreement is not none %}<div>{{ "%.0f" | format(100 * line.agreement) }} % of those \
most like it have this label</div>{% endif %}
<div>{{ line.file or "example %d" | format(line.example) }}</div></li>
{% endfor %}</ol>
{% endmacro %}<h2>Check these labels first</h2>
<p>The <b>loss</b> says how far the model is from the label: 0 where it is sure of it, and more, the
less it believes it.{% if guess %} Who guesses among your {{ num_classes }} classes has {{
"%.2g" | format(guess) }}.{% endif %} The largest come first.</p>
{{ cards(likely) }}
{% if opposed %}<h2>Learning these did not help the server's examples</h2>
<p>The server has examples of its own, by which it judges what members send. The <b>influence</b>
says whether learning an example brought the model closer to them (above 0) or away from them
(below 0, with a red frame), as {{ harmful }} of your {{ count }} did. That says little about a
label: most of these may be right, so drop none for this figure alone. The lowest come first; their
numbers are those of the first list.</p>
{{ cards(opposed) }}
{% endif %}{% for name, groups in tables if groups %}<table>
<thead><tr><th>{{ name }}</th><th class="number">Examples</th>\
<th class="number">Influence below 0</th><th class="number">Mean loss</th></tr></thead><tbody>
{% for group in groups %}<tr><td>{{ group.name }}</td><td class="number">{{ group.count }}</td>\
<td class="number">{{ group.harmful }}</td>\
<td class="number">{{ "%.3f" | format(group.loss) }}</td></tr>
{% endfor %}</tbody></table>
{% endfor %}</body>
</html>
"""

"""The arena's page: who holds up under which attack, worst case first, with a heat map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from fedif_flower.run.plots import new_figure, save_figure
from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.sweeps.arena import BASE, CLEAN, SHARES, Bout, Figures
from fedif_flower.sweeps.tables import ResultTable

Found = Mapping[Bout, Figures]


def write_page(found: Found, path: Path, about: Sequence[str]) -> None:
    """Write the page, and beside it its heat map, ``<name>.png``.

    Parameters
    ----------
    found : mapping of Bout to Figures
        What was measured; strategies and attacks are shown in its order.
    path : Path
        The page, ``*.md``.
    about : sequence of str
        Paragraphs on how it was measured, and by which command.
    """
    make_folder(path.parent)
    picture = path.with_suffix(".png")
    draw_heat_map(found, picture)
    lines = ["# Arena", ""]
    for paragraph in about:
        lines += [*wrap(paragraph, 120), ""]
    lines += [f"![accuracy under attack]({picture.name})", "", "## Worst cases", ""]
    lines += headline(found).to_markdown()
    for title, name, shown in _MEASURES:
        table = details(found, title, name, shown)
        if table.lines:
            lines += ["", f"## {title}", "", *table.to_markdown()]
    write_atomically(path, "\n".join(lines) + "\n")


def about(seeds: int, command: str) -> list[str]:
    """Return what a reader must know of the measurement."""
    sampled = round(float(BASE["fraction-train"]) * int(BASE["num-clients"]))
    data = str(BASE["dataset"]).title()
    return [
        f"{data}, {BASE['num-clients']} clients of which {sampled} train in a "
        f"round, {BASE['num-server-rounds']} rounds, "
        f"{seeds} seed{'s' if seeds > 1 else ''}; {' or '.join(f'{s:.0%}' for s in SHARES)} of the "
        "clients are malicious. Settings are those of each strategy's defaults, the same under "
        "every attack; rules that expect a share of malicious clients are told "
        f"{BASE['assumed-malicious-fraction']:.0%}. Accuracy is the mean of the last ten rounds, a "
        "backdoor's success the share of test images with the trigger that get its class after the "
        "last round. Colluders know their accomplices' updates alone. A rule by coordinates gives "
        "no weights.",
        f"Written by `{command}`, which can be interrupted and goes on where it was.",
    ]


def headline(found: Found) -> ResultTable:
    """Return a line per strategy: without an attack, and at its worst over the attacks."""
    shares = _shares(found)
    heading = ["strategy", "no attack"]
    heading += [f"worst at {share:.0%}, by" for share in shares]
    heading += [f"backdoor at {share:.0%}" for share in shares]
    lines = []
    for strategy in _strategies(found):
        clean = found.get(Bout(strategy, CLEAN, 0.0))
        line = [strategy, _percent(clean.accuracy if clean else None)]
        line += [_worst(found, strategy, share) for share in shares]
        line += [_percent(_most_success(found, strategy, share)) for share in shares]
        lines.append(line)
    return ResultTable("Worst cases", heading, lines, num_labels=1)


def details(
    found: Found, title: str, name: str, shown: Callable[[float | None], str]
) -> ResultTable:
    """Return a line per strategy with one figure under each attack for which it is defined."""

    def figure(figures: Figures) -> float | None:
        value: float | None = getattr(figures, name)
        return value

    columns = [
        point
        for point in _points(found)
        if any(figure(f) is not None for b, f in found.items() if (b.attack, b.share) == point)
    ]
    lines = []
    for strategy in _strategies(found) if columns else ():
        own = [found.get(Bout(strategy, *point)) for point in columns]
        values = [figure(f) if f else None for f in own]
        if any(value is not None for value in values):
            lines.append([strategy, *map(shown, values)])
    return ResultTable(title, ["strategy", *map(_label, columns)], lines, num_labels=1)


def draw_heat_map(found: Found, path: Path) -> None:
    """Draw accuracy by strategy and attack, and beside it the backdoor's success."""
    strategies, points = _strategies(found), _points(found)
    backdoors = [
        point
        for point in points
        if any(
            f.attack_success is not None and (b.attack, b.share) == point for b, f in found.items()
        )
    ]
    panels = [
        ("test accuracy, %", points, "accuracy", "RdYlGn"),
        ("backdoor success, %", backdoors, "attack_success", "RdYlGn_r"),
    ]
    panels = [panel for panel in panels if panel[1]]
    figure = new_figure(1.9 + 0.3 * len(strategies))
    figure.set_size_inches(4 + 0.5 * (len(points) + len(backdoors)), figure.get_figheight())
    axes = figure.subplots(
        1, len(panels), squeeze=False, width_ratios=[len(panel[1]) for panel in panels]
    )[0]
    for axis, (title, columns, name, colours) in zip(axes, panels, strict=True):
        values = [
            [_value(found.get(Bout(strategy, *point)), name) for point in columns]
            for strategy in strategies
        ]
        axis.imshow(values, vmin=0, vmax=100, cmap=colours, aspect="auto")
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(columns)), map(_label, columns), rotation=60, ha="right")
        first = axis is axes[0]
        axis.set_yticks(range(len(strategies)), strategies if first else [""] * len(strategies))
        axis.tick_params(labelsize=8)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                if value == value:  # NaN: not measured
                    axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8)
    save_figure(figure, path)


def _value(figures: Figures | None, name: str) -> float:
    value = getattr(figures, name) if figures else None
    return float("nan") if value is None else 100 * float(value)


def _strategies(found: Found) -> list[str]:
    return list(dict.fromkeys(bout.strategy for bout in found))


def _points(found: Found) -> list[tuple[str, float]]:
    return list(dict.fromkeys((bout.attack, bout.share) for bout in found))


def _shares(found: Found) -> list[float]:
    return sorted({bout.share for bout in found if bout.attack != CLEAN})


def _of(found: Found, strategy: str, share: float) -> dict[str, Figures]:
    """Return a strategy's figures by attack, at one share."""
    return {
        bout.attack: figures
        for bout, figures in found.items()
        if bout.strategy == strategy and bout.attack != CLEAN and bout.share == share
    }


def _worst(found: Found, strategy: str, share: float) -> str:
    own = _of(found, strategy, share)
    if not own:
        return "-"
    attack = min(own, key=lambda name: own[name].accuracy)
    return f"{_percent(own[attack].accuracy)}, {attack}"


def _most_success(found: Found, strategy: str, share: float) -> float | None:
    own = [f.attack_success for f in _of(found, strategy, share).values()]
    return max((success for success in own if success is not None), default=None)


def _label(point: tuple[str, float]) -> str:
    attack, share = point
    return "no attack" if attack == CLEAN else f"{attack}, {share:.0%}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.1f}"


_MEASURES: Sequence[tuple[str, str, Callable[[float | None], str]]] = (
    ("Test accuracy, %, mean of the last ten rounds", "accuracy", _percent),
    ("Backdoor's success, %", "attack_success", _percent),
    ("Weight of malicious clients, %", "malicious_weight", _percent),
    ("AUC of low weight as a sign of malice", "detection_auc", _ratio),
    (
        "Aggregation, ms per round (other work on the machine counts)",
        "aggregation_seconds",
        _milliseconds,
    ),
)

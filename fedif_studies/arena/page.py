"""The arena's page: who holds up under which attack, worst case first, with a heat map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from fedif_flower.run.plots import new_figure, save_figure
from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.strategies.config import default_stages
from fedif_flower.tables import ResultTable
from fedif_studies.arena.experiments import ATTACKS, CLEAN, STRATEGIES, Experiment, Setup
from fedif_studies.arena.figures import Figures

Found = Mapping[Experiment, Figures]

# What bounds bring by themselves, from the rows of `fedif_studies.factorial`.
CONTROL = (
    "How much of a lead is the bounds' own: on digits with 40 % malicious clients, five seeds, "
    "under PoisonedFL FedAvg has 30.3 %, FedAvg's weights with FedIF's bounds 88.1 %, FedIF "
    "without bounds 83.4 %, with them 91.4 %; under sign flips 51.4 %, 86.2 %, 92.0 % and 92.9 %. "
    "Influence descent is as good without bounds: 94.1 % and 93.1 %. `docs/results/factorial.md` "
    "has every cell."
)


def write_page(found: Found, path: Path, title: str, about: Sequence[str]) -> None:
    """Write the page, and beside it its heat map, ``<name>.png``.

    Parameters
    ----------
    found : mapping of Experiment to Figures
        What was measured; strategies and attacks are shown in its order.
    path : Path
        The page, ``*.md``.
    title : str
        The data set's name.
    about : sequence of str
        Paragraphs on how it was measured, and by which command.
    """
    make_folder(path.parent)
    picture = path.with_suffix(".png")
    draw_heat_map(found, picture)
    lines = [f"# Arena: {title}", ""]
    for paragraph in about:
        lines += [*wrap(paragraph, 120, break_on_hyphens=False), ""]
    lines += [
        f"[![accuracy under attack]({picture.name})]({picture.name})",
        "",
        "## Worst cases",
        "",
    ]
    lines += headline(found).to_markdown()
    lines += ["", "## The best against each attack", ""]
    lines += best_answers(found).to_markdown()
    if len(_shares(found)) > 1:
        shares = " / ".join(f"{share:.0%}" for share in _shares(found))
        lines += ["", f"In the tables below: malicious clients {shares}."]
    for measure, name, shown in _MEASURES:
        table = details(found, measure, name, shown)
        if table.lines:
            lines += ["", f"## {measure}", "", *table.to_markdown()]
    write_atomically(path, "\n".join(lines) + "\n")


def about(setup: Setup, experiments: Sequence[Experiment], seeds: int, command: str) -> list[str]:
    """Return what a reader must know of the measurement."""
    settings, shares = setup.settings, _shares(experiments)
    bounds = _bounds(experiments)
    model = f", {settings['model']}" if "model" in settings else ""
    return [
        *([bounds, CONTROL] if bounds else []),
        f"{setup.title}{model}, {settings['num-clients']} clients of which "
        f"{setup.clients_per_round} train in a round, {settings['num-server-rounds']} rounds, "
        f"{seeds} seed{'s' if seeds > 1 else ''}; {' or '.join(f'{s:.0%}' for s in shares)} of the "
        "clients are malicious. Settings are those of each strategy's defaults, the same under "
        "every attack; rules that expect a share of malicious clients are told "
        f"{settings['assumed-malicious-fraction']:.0%}. Accuracy is the mean of the last ten "
        "rounds, a backdoor's success the share of test images with the trigger that get its class "
        "after the last round"
        + ("; what follows ± is the standard deviation between seeds" if seeds > 1 else "")
        + f". {_subset(experiments)}Colluders know their accomplices' updates alone. "
        f"{_patience(experiments)}A rule by coordinates gives no weights, and nothing can be "
        "attributed to its clients. Contributions are attributed by Simpson's rule and added up "
        "over the rounds; a negative sum counts as 0 where clients are compared by it. A statement "
        "pays by what of it lies within bounds (credit), which is less.",
        f"Written by `{command}`, which can be interrupted and goes on where it was.",
    ]


def _bounds(experiments: Iterable[Experiment]) -> str:
    """Return which strategies come with bounds on updates, where some do and others do not."""
    names = list(dict.fromkeys(one.strategy for one in experiments))
    own = {n: default_stages(str(STRATEGIES.get(n, {"strategy": n})["strategy"])) for n in names}
    bounded = [name for name in names if own[name]]
    if not bounded or len(bounded) == len(names):
        return ""
    *others, last = bounded
    named = f"{', '.join(others)} and {last} run" if others else f"{last} runs"
    stages = " and ".join(f"`{type(stage).__name__}`" for stage in own[last])
    return (
        f"{named} with bounds, which are their defaults ({stages}: on the length of an update and "
        "on the loss after a step); the others run without."
    )


def _patience(experiments: Iterable[Experiment]) -> str:
    """Return how PoisonedFL's setting differs from its paper's, where it is among the attacks."""
    name, paper = "PoisonedFL", 50
    if name not in {one.attack for one in experiments}:
        return ""
    rounds = ATTACKS[name]["poisoned-fl.patience"]
    return f"{name} judges its effect every {rounds} rounds here (`patience`; its paper: {paper}). "


def _subset(experiments: Iterable[Experiment]) -> str:
    """Return a sentence on the attacks that are not made at every share, if there are any."""
    made: dict[str, set[float]] = {}
    for one in experiments:
        if one.attack != CLEAN:
            made.setdefault(one.attack, set()).add(one.share)
    fewest = min(made.values(), key=len, default=set())
    everywhere = [attack for attack, shares in made.items() if len(shares) > len(fewest)]
    if not everywhere:
        return ""
    return (
        f"Chosen before anything was measured: every attack at "
        f"{' and '.join(f'{share:.0%}' for share in sorted(fewest))}, at the other shares "
        f"{', '.join(everywhere)}. "
    )


def best_answers(found: Found) -> ResultTable:
    """Return a line per attack and share: the strategy that stands it best, and what it loses.

    What the best cannot stop, no strategy here stops.
    """
    heading = ["attack", "malicious", "best accuracy, by", "less than without attack"]
    heading.append("least success of the backdoor, by")
    lines = []
    for attack, share in _points(found):
        own = _at(found, attack, share)
        if attack == CLEAN:
            continue
        best = max(own, key=lambda name: own[name].accuracy)
        clean = found.get(Experiment(best, CLEAN, 0.0))
        lost = None if clean is None else clean.accuracy - own[best].accuracy
        triggered = {s: f for s, f in own.items() if f.attack_success is not None}
        least = min(triggered, key=lambda name: triggered[name].attack_success or 0.0, default="")
        line = [attack, f"{share:.0%}", f"{_accuracy(own[best])}, {best}", _percent(lost)]
        lines.append([*line, f"{_success(triggered[least])}, {least}" if least else "-"])
    return ResultTable("The best against each attack", heading, lines, num_labels=2)


def headline(found: Found) -> ResultTable:
    """Return a line per strategy: without an attack, and at its worst over the attacks."""
    shares = _shares(found)
    heading = ["strategy", "no attack"]
    heading += [f"worst at {share:.0%}, by" for share in shares]
    heading += [f"backdoor at {share:.0%}" for share in shares]
    lines = []
    for strategy in _strategies(found):
        clean = found.get(Experiment(strategy, CLEAN, 0.0))
        line = [strategy, _accuracy(clean)]
        line += [_worst(found, strategy, share) for share in shares]
        line += [_success(_most_success(found, strategy, share)) for share in shares]
        lines.append(line)
    return ResultTable("Worst cases", heading, lines, num_labels=1)


def details(
    found: Found, title: str, name: str, shown: Callable[[float | None], str]
) -> ResultTable:
    """Return a line per attack with one figure of each strategy for which it is defined.

    Where there are several shares of malicious clients, a cell has a figure for each.
    """

    def values(strategy: str, attack: str) -> list[Figures | None]:
        shares = [0.0] if attack == CLEAN else _shares(found)
        return [found.get(Experiment(strategy, attack, share)) for share in shares]

    def known(row: list[Figures | None]) -> bool:
        return any(figures and getattr(figures, name) is not None for figures in row)

    def cell(figures: Figures | None) -> str:
        value = getattr(figures, name) if figures else None
        return _within(value, getattr(figures, f"{name}_deviation", None), shown)

    attacks = dict.fromkeys(experiment.attack for experiment in found)
    rows = {a: {s: values(s, a) for s in _strategies(found)} for a in attacks}
    rows = {attack: row for attack, row in rows.items() if any(map(known, row.values()))}
    columns = [s for s in _strategies(found) if any(known(row[s]) for row in rows.values())]
    lines = []
    for attack, row in rows.items():
        cells = [" / ".join(map(cell, row[s])) if known(row[s]) else shown(None) for s in columns]
        lines.append(["no attack" if attack == CLEAN else attack, *cells])
    return ResultTable(title, ["attack", *columns], lines, num_labels=1)


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
    # Light is good in both, for every eye and in print.
    panels = [
        ("test accuracy, %", points, "accuracy", "cividis"),
        ("backdoor's success, %", backdoors, "attack_success", "cividis_r"),
    ]
    panels = [panel for panel in panels if panel[1]]
    figure = new_figure(1.6 + 0.27 * sum(len(panel[1]) + 1 for panel in panels))
    figure.set_size_inches(2.2 + 0.68 * len(strategies), figure.get_figheight())
    axes = figure.subplots(
        len(panels), 1, squeeze=False, height_ratios=[len(panel[1]) for panel in panels]
    )[:, 0]
    for axis, (title, rows, name, colours) in zip(axes, panels, strict=True):
        values = [
            [_value(found.get(Experiment(strategy, *point)), name) for strategy in strategies]
            for point in rows
        ]
        picture = axis.imshow(values, vmin=0, vmax=100, cmap=colours, aspect="auto")
        axis.set_title(title, fontsize=10)
        names = [name.replace(" ", "\n", 1) for name in strategies]
        axis.set_xticks(range(len(strategies)), names)
        axis.set_yticks(range(len(rows)), map(_label, rows))
        axis.tick_params(labelsize=9, top=True, labeltop=True, bottom=False, labelbottom=False)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                if value == value:  # NaN: not measured
                    red, green, blue, _ = picture.cmap(picture.norm(value))
                    is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                    axis.text(
                        *(column, row, f"{value:.1f}"),
                        ha="center",
                        va="center",
                        fontsize=9,
                        color="white" if is_dark else "black",
                    )
    save_figure(figure, path)


def _value(figures: Figures | None, name: str) -> float:
    value = getattr(figures, name) if figures else None
    return float("nan") if value is None else 100 * float(value)


def _strategies(found: Found) -> list[str]:
    return list(dict.fromkeys(experiment.strategy for experiment in found))


def _points(found: Found) -> list[tuple[str, float]]:
    return list(dict.fromkeys((experiment.attack, experiment.share) for experiment in found))


def _shares(experiments: Iterable[Experiment]) -> list[float]:
    return sorted({experiment.share for experiment in experiments if experiment.attack != CLEAN})


def _of(found: Found, strategy: str, share: float) -> dict[str, Figures]:
    """Return a strategy's figures by attack, at one share."""
    return {
        experiment.attack: figures
        for experiment, figures in found.items()
        if experiment.strategy == strategy
        and experiment.attack != CLEAN
        and experiment.share == share
    }


def _worst(found: Found, strategy: str, share: float) -> str:
    own = _of(found, strategy, share)
    if not own:
        return "-"
    attack = min(own, key=lambda name: own[name].accuracy)
    return f"{_accuracy(own[attack])}, {attack}"


def _most_success(found: Found, strategy: str, share: float) -> Figures | None:
    own = [f for f in _of(found, strategy, share).values() if f.attack_success is not None]
    return max(own, key=lambda figures: figures.attack_success or 0.0, default=None)


def _at(found: Found, attack: str, share: float) -> dict[str, Figures]:
    """Return the figures of all strategies under one attack, by strategy."""
    return {
        one.strategy: f for one, f in found.items() if (one.attack, one.share) == (attack, share)
    }


def _accuracy(figures: Figures | None) -> str:
    if figures is None:
        return _percent(None)
    return _within(figures.accuracy, figures.accuracy_deviation, _percent)


def _success(figures: Figures | None) -> str:
    if figures is None:
        return _percent(None)
    return _within(figures.attack_success, figures.attack_success_deviation, _percent)


def _within(
    value: float | None, deviation: float | None, shown: Callable[[float | None], str]
) -> str:
    """Return a figure with its deviation, if that is known."""
    return shown(value) if deviation is None else f"{shown(value)} ± {shown(deviation)}"


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
    ("AUC of low weight as a sign of malice", "weight_auc", _ratio),
    ("AUC of low contribution as a sign of malice", "attribution_auc", _ratio),
    ("A malicious client's contribution, in an honest client's", "attackers_gain", _ratio),
    (
        "Aggregation, ms per round (other work on the machine counts)",
        "aggregation_seconds",
        _milliseconds,
    ),
)

"""The pictures of a run, as matplotlib is told to draw them."""

from __future__ import annotations

from matplotlib.figure import Figure

from fedif_flower.run import plots
from fedif_flower.run.rows import ClientRow


def row(client_id: int, contribution: float, *, partition_id: int, malicious=False) -> ClientRow:
    empty = ["score", "normalized", "weight", "accumulative_influence", "num_examples"]
    empty += ["claimed_examples", "train_seconds", "train_loss"]
    return ClientRow(
        **dict.fromkeys(empty),
        round=1,
        partition_id=partition_id,
        client_id=client_id,
        malicious=malicious,
        weight_score=contribution,
        status="accepted",
        rejection="",
    )


def texts(rows, tmp_path, monkeypatch, **names) -> tuple[list[str], list[str]]:
    """What is written beside the lines, and in the legend."""
    figure = Figure()
    monkeypatch.setattr(plots, "new_figure", lambda: figure)
    assert plots.plot_scores(rows, 1, tmp_path / "weight-scores.png", **names)
    (axes,) = figure.axes
    legend = axes.get_legend()
    beside = [text.get_text() for text in axes.texts]
    return beside, [text.get_text() for text in legend.texts] if legend else []


def test_lines_are_called_what_the_operator_calls_members(tmp_path, monkeypatch):
    rows = [
        row(11, 0.5, partition_id=4),
        row(12, 0.501, partition_id=2),
        row(13, 1.0, partition_id=0),
    ]
    names = {11: "Nord", 12: "Sued", 13: "a very long name of a clinic"}
    beside, _ = texts(rows, tmp_path, monkeypatch, names=names)
    assert beside == ["Nord, Sued", "a very long name of a cl"]

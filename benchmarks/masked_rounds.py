"""Masked rounds against plain ones: time and upload of a whole round, and what a run comes to.

A round has ten members with 500 images each and the CIFAR-10 CNN of 1.06 million parameters; a run
is FedIF's on digits, where three of ten members shuffle labels. ``--full`` trains for the paper's
five epochs and 100 rounds. Members train one after the other, and the keeper is in this process.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from flwr.app import Message

from benchmarks.common import Figure, report
from benchmarks.workload import synthetic_images
from fedif_flower.client.app import task_app
from fedif_flower.messages.screened_grid import weight
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid

MEMBERS, IMAGES = 10, 500
ROUND = {"dataset": "image-folder", "model": "cnn", "learning-rate": 0.01, "attack": "none"}
RUN = {"dataset": "digits", "attack": "label-noise", "malicious-fraction": 0.3}
Rows = Sequence[Mapping[str, str]]


class Weighing(LocalGrid):
    """Weighs the arrays that members send."""

    uploaded = 0

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the nodes answer."""
        replies = super().pull_messages(message_ids)
        self.uploaded += sum(weight(r.content)[0] for r in replies if r.has_content())
        return replies


def play(folder: Path, **settings: Any) -> tuple[RunFolder, int]:
    """Run a federation in this process; return its records, and the bytes that members sent."""
    fixed = {"num-clients": MEMBERS, "fraction-train": 1.0, "device": "cpu", "checkpoint-every": 0}
    keys = {name.replace("_", "-"): value for name, value in settings.items()}
    config = RunConfig.from_run_config({**fixed, **keys, "output-dir": str(folder)})
    grid = Weighing(task_app(), MEMBERS)
    return RunFolder(run_federation(grid, config)), grid.uploaded


def round_costs(folder: Path, full: bool) -> list[Figure]:
    """Compare the seconds and bytes of a round; the first one warms up."""
    synthetic_images(folder / "images", MEMBERS * IMAGES + 1250, 200)
    seconds, sent = {}, {}
    rounds = 6 if full else 3
    for mode in ("off", "trial"):
        run, sent[mode] = play(
            folder / mode,
            **ROUND,
            masking=mode,
            data_dir=str(folder / "images"),
            local_epochs=5 if full else 1,
            num_server_rounds=rounds,
            eval_every=rounds,
        )
        rows = run.rounds.read()[2:]
        seconds[mode] = [float(r["round_seconds"]) + float(r["aggregation_seconds"]) for r in rows]
    ours, peer = (statistics.median(seconds[mode]) for mode in ("trial", "off"))
    spread = f"{min(seconds['trial']):.2f} to {max(seconds['trial']):.2f} s"
    title = "ten members, d = 1,059,306: masked / plain,"
    return [
        Figure(f"{title} a round", ours, peer, "s", ours / peer, "<= 1.15", spread),
        Figure(
            *(f"{title} upload of a member", sent["trial"] / MEMBERS / rounds / 1e6),
            *(sent["off"] / MEMBERS / rounds / 1e6, "MB", sent["trial"] / sent["off"], "<= 2.1"),
        ),
    ]


def run_results(folder: Path, full: bool) -> list[Figure]:
    """Compare what a masked run comes to with a plain one.

    Weights and contributions are compared over ten rounds: what is rounded otherwise moves the
    model, and training drives two models apart, however near they were.
    """
    masked, plain = _both(folder / "short", 10)
    found = []
    for name, (ours, theirs), column in (
        ("weights", (masked.clients.read(), plain.clients.read()), "weight"),
        ("contributions", (masked.attribution.read(), plain.attribution.read()), "contribution"),
    ):
        off = max(
            abs(float(a[column]) - float(b[column])) for a, b in zip(ours, theirs, strict=True)
        )
        largest = max(abs(float(row[column])) for row in theirs)
        aim = "1e-5" if column == "weight" else "1e-4"
        title = f"digits, label noise, 10 rounds: largest difference of {name} / the largest"
        found.append(Figure(title, off, largest, "", off / largest, aim))
    credited = [_credited(run.attribution.read()) for run in (masked, plain)]
    off = max(abs(credited[0][who] - credited[1][who]) for who in credited[1])
    total = sum(credited[1].values())
    title = "digits, label noise, 10 rounds: largest difference of a credit / all credits"
    found.append(Figure(title, off, total, "nats", off / total, ""))
    rounds = 100 if full else 10
    masked, plain = _both(folder / "long", rounds)
    for title, key in (("test accuracy", "test_accuracy"), ("detection AUC", "detection_auc")):
        one, other = (float(run.summary.read()[key]) for run in (masked, plain))
        title = f"digits, label noise, {rounds} rounds: {title}"
        found.append(Figure(title, one, other, "", one / other, "1"))
    return found


def _both(folder: Path, rounds: int) -> tuple[RunFolder, RunFolder]:
    """Return a masked run and the same one plain."""
    modes = ("trial", "off")
    masked, plain = (
        play(folder / mode, **RUN, masking=mode, attribution="simpson", num_server_rounds=rounds)[0]
        for mode in modes
    )
    return masked, plain


def _credited(rows: Rows) -> dict[str, float]:
    """Return what each member is credited with over a run."""
    sums: dict[str, float] = {}
    for row in rows:
        sums[row["client_id"]] = sums.get(row["client_id"], 0.0) + float(row["credited"])
    return sums


def main(
    full: Annotated[bool, typer.Option(help="what is quoted")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        figures = [*round_costs(folder, full), *run_results(folder, full)]
    report("Masked rounds against plain ones", "masked-rounds", figures, write=write, full=full)


if __name__ == "__main__":
    typer.run(main)

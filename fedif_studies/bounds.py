"""What bounds on a round's step cost among honest clients, and what they stop among others.

Small federations by FedAvg and by strategies that hold validation data, with their bounds (the
default) and without. Training swings where the learning rate is high, and a bound must let it. Runs
in this process, without Ray. Results are appended as they come; what is there is not run again.
``docs/methods/clipping.md`` quotes the table. Two of the tasks are examples':
``PYTHONPATH=examples/quickstart:examples/time-series python -m fedif_studies.bounds``.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedif_flower import ClientSite, Site, Task, client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import OWN
from fedif_studies.rows import RESULTS, append_rows
from quickstart.task import Net
from time_series.task import task as time_series

OUTPUT = RESULTS / "bounds.csv"
COLUMNS = ("case", "strategy", "bounds", "seed", "last", "last-ten", "least-of-ten", "unmoved")
HELD_OUT = 597
ATTACKS: Mapping[str, Mapping[str, Scalar]] = {
    "sign flip": {"attack": "sign-flip"},
    "scaling x10": {"attack": "scaling", "scaling.factor": 10.0},
    "scaling x100": {"attack": "scaling", "scaling.factor": 100.0},
    "model replacement": {"attack": "model-replacement"},
}


def _digits(enlarged: bool) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits in an order of their own, as Flower's quickstart takes them."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # [n, 1, 8, 8]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    if enlarged:
        images = nn.functional.interpolate(images, size=(32, 32)).expand(-1, 3, -1, -1)
    return images[order].contiguous(), torch.tensor(digits.target)[order]


def _digits_task(name: str, model: Callable[[], nn.Module], *, enlarged: bool) -> Task:
    inputs, targets = _digits(enlarged)
    half = HELD_OUT // 2

    def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
        own = slice(HELD_OUT + site.partition_id, None, site.num_partitions)
        return inputs[own], targets[own]

    def validation_data(_: Site) -> tuple[Tensor, Tensor]:
        return inputs[:half], targets[:half]

    def data_to_test(_: Site) -> tuple[Tensor, Tensor]:
        return inputs[half:HELD_OUT], targets[half:HELD_OUT]

    return Task(
        name=name,
        model=model,
        client_data=client_data,
        validation_data=validation_data,
        test_data=data_to_test,
        loss=nn.functional.cross_entropy,
    )


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class Case:
    """A federation: its settings and its task, ``None`` for the images of a run config."""

    name: str
    clients: int
    settings: Mapping[str, Scalar]
    task: Task | None = field(default=None, compare=False)


def cases(data_dir: str) -> Iterator[Case]:
    """Give the cases; those on Fashion-MNIST only where its files are."""
    often = {"fraction-train": 1.0, "num-server-rounds": 40, "local-epochs": 1, "batch-size": 32}
    cnn = _digits_task("quickstart-cnn", Net, enlarged=True)
    perceptron = _digits_task("quickstart-mlp", _perceptron, enlarged=False)
    for task, rate in product((cnn, perceptron), (0.03, 0.1)):
        yield Case(f"{task.name}, lr {rate}", 5, {**often, "learning-rate": rate}, task)
    digits = {"fraction-train": 0.2, "num-server-rounds": 40}
    yield Case("digits", 50, digits)
    for (attack, own), share in product(ATTACKS.items(), (0.2, 0.4)):
        settings = {**digits, **own, "malicious-fraction": share}
        yield Case(f"digits, {attack}, {share:.0%}", 50, settings)
    series = {"fraction-train": 1.0, "num-server-rounds": 20, "local-epochs": 1}
    for rate in (0.02, 0.05):
        named = f"time series, lr {rate}"
        yield Case(named, 8, {**series, "learning-rate": rate}, time_series)
    if data_dir:
        images: dict[str, Scalar] = {
            "dataset": "fashion-mnist",
            "data-dir": data_dir,
            "model": "lenet5",
            "fraction-train": 0.1,
            "num-server-rounds": 30,
            "local-epochs": 1,
        }
        for rate in (0.01, 0.05):
            named = f"Fashion-MNIST, lr {rate}"
            yield Case(named, 100, {**images, "learning-rate": rate})


def measure(case: Case, strategy: str, bounds: str, seed: int) -> dict[str, object]:
    """Return one line: accuracy in percent, or the error in hundredths of its unit."""
    with TemporaryDirectory() as folder:
        task = "images" if case.task is None else OWN + case.task.name
        config = RunConfig.from_run_config(
            {
                **default_run_config(),
                "task": task,
                "output-dir": folder,
                "num-clients": case.clients,
                "strategy": strategy,
                "checkpoint-every": 0,
                "device": "cpu",
                "seed": seed,
                **({"update-clipping": 0.0} if bounds == "off" else {}),
                **case.settings,
            }
        )
        grid = LocalGrid(client_app(case.task), case.clients)
        run_dir = run_federation(grid, config, task=case.task)
        rows = read_rows(run_dir / "rounds.csv")[1:]
    key = "test_accuracy" if rows[-1]["test_accuracy"] else "test_mean_absolute_error"
    values = [100 * float(row[key]) for row in rows]
    return {
        "case": case.name,
        "strategy": strategy,
        "bounds": bounds,
        "seed": seed,
        "last": f"{values[-1]:.2f}",
        "last-ten": f"{statistics.mean(values[-10:]):.2f}",
        "least-of-ten": f"{min(values[-10:]):.2f}",
        "unmoved": sum(row["status"] != "advanced" for row in rows),
    }


def main(
    strategies: Annotated[str, typer.Option(help="by name, beside FedAvg")] = "fedif",
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is; empty: without it")] = "",
    bounds: Annotated[str, typer.Option(help="on, off or on,off")] = "on,off",
    seeds: Annotated[int, typer.Option(help="seeds of each case")] = 5,
    only: Annotated[str, typer.Option(help="cases whose name begins so")] = "",
    output: Annotated[Path, typer.Option(help="CSV file to append to")] = OUTPUT,
) -> None:
    """Measure what is missing, then print the means and the worst seed beside FedAvg."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    chosen = [case for case in cases(data_dir) if case.name.startswith(only)]
    contenders = [("fedavg", "off")]
    contenders += [
        (name, bounded) for name in strategies.split(",") for bounded in bounds.split(",")
    ]
    keys = ("case", "strategy", "bounds", "seed")
    done = {tuple(row[key] for key in keys) for row in read_rows(output)}
    for case, seed, (strategy, bounded) in product(chosen, range(seeds), contenders):
        if (case.name, strategy, bounded, str(seed)) not in done:
            line = measure(case, strategy, bounded, seed)
            append_rows(output, COLUMNS, [list(line.values())])
    rows = read_rows(output)
    print("| case | strategy | bounds | mean of last rounds | beside FedAvg | worst seed beside |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for case, (strategy, bounded) in product(chosen, contenders):
        own = _by_seed(rows, case.name, strategy, bounded, seeds)
        floor = _by_seed(rows, case.name, "fedavg", "off", seeds)
        gains = [a - b for a, b in zip(own, floor, strict=True)]
        print(
            f"| {case.name} | {strategy} | {bounded} | {statistics.mean(own):.1f} "
            f"| {statistics.mean(gains):+.2f} | {min(gains):+.2f} |"
        )


def _by_seed(
    rows: list[dict[str, str]], case: str, strategy: str, bounds: str, seeds: int
) -> list[float]:
    key = (case, strategy, bounds)
    found = {
        int(row["seed"]): float(row["last"])
        for row in rows
        if (row["case"], row["strategy"], row["bounds"]) == key
    }
    return [found[seed] for seed in range(seeds)]


if __name__ == "__main__":
    typer.run(main)

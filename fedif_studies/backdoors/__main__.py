"""What was tried against backdoors of 40 % of the members beside rules that weigh.

FedAvg on digits and on Fashion-MNIST, as in the arena: as it is, with the trigger screen, and with
CRFL's clipping and noise in every round and votes of noisy models at the end. What the first two
end with is mended on the server's images: by pruning the units that are least active there, by
training, by both, and by unlearning the triggers that are found. Figures are of the model after the
last round. Rows are added as they come; what has one is not measured again.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from fedif_flower.client.app import app as client_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import require
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation import Validation
from fedif_studies.arena.bouts import setup
from fedif_studies.backdoors.crfl import noise
from fedif_studies.backdoors.inversion import held_out_images
from fedif_studies.backdoors.unlearning import unlearn_model
from fedif_studies.lab.table import MeanStd
from fedif_studies.names import NAMES
from fedif_studies.rows import RESULTS, append_rows, put_tables

OUTPUT = RESULTS / "backdoors.csv"
PAGE = RESULTS.parent / "methods" / "backdoors.md"
COLUMNS = ("data", "attack", "method", "seed", "accuracy", "success")
# The first two with every method, the others with the first method.
CLEAN, PIXEL = "none", "pixel trigger"
ATTACKS: Mapping[str, Mapping[str, Scalar]] = {
    CLEAN: {},
    **{
        name: {"attack": name.replace(" ", "-"), "malicious-fraction": 0.4}
        for name in (PIXEL, "distributed trigger", "neurotoxin", "descending backdoor")
    },
}
DATA = {"digits": "digits", "fashion-mnist": "Fashion-MNIST"}
PLAIN, SCREEN, _CRFL = "FedAvg", "FedAvg, trigger screen", "CRFL, noise "
STDS = (0.01, 0.03, 0.1)  # Of CRFL's noise; the first is its paper's.
# Of all parameters: what FedAvg reaches there without attack (seed 10), so that it can learn.
BOUNDS = {"digits": 9.2, "fashion-mnist": 11.4}
VOTES = 200
LOST = 0.04  # Of the accuracy on the server's images, by pruning: Liu et al.'s.
EPOCHS = 10  # Of training on them.


Predict = Callable[[Tensor], Tensor]
"""Takes inputs ``[n, ...]`` and returns classes ``[n]``."""


def by(model: nn.Module) -> Predict:
    """Return a model's answers."""
    model.eval()
    return lambda inputs: model(inputs).argmax(dim=1)


def by_votes(model: nn.Module, std: float, votes: int, seed: int = 0) -> Predict:
    """Return the classes that most copies of a model with noise on its parameters vote for."""
    copies = []
    for vote in range(votes):
        noisy = copy.deepcopy(model).eval()
        for index, parameter in enumerate(noisy.parameters()):
            parameter.data += std * noise(parameter, "crfl-vote", seed, vote, index)
        copies.append(noisy)

    def predict(inputs: Tensor) -> Tensor:
        answers = torch.stack([noisy(inputs).argmax(dim=1) for noisy in copies])  # [votes, n]
        return answers.mode(dim=0).values

    return predict


@torch.no_grad()
def share_right(predict: Predict, data: Validation) -> float:
    """Return the share of examples that get their class."""
    right = [predict(inputs) == targets for inputs, targets in (b.content for b in data.batches)]
    return float(torch.cat(right).double().mean())


def last_features(model: nn.Module) -> nn.Conv2d | nn.Linear:
    """Return the last convolution; without one, the last linear layer but the output's."""
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    require(bool(convolutions or linear[:-1]), "model", type(model).__name__, "hidden layers")
    return convolutions[-1] if convolutions else linear[-2]


@torch.no_grad()
def prune(model: nn.Module, held_out: Validation, most_lost: float = LOST) -> int:
    """Set the units of the last features to zero, in place, and return of how many.

    The least active on the held-out images go first, as long as the accuracy there falls by no more
    than ``most_lost``.

    References
    ----------
    Liu, Dolan-Gavitt and Garg, "Fine-Pruning: Defending Against Backdooring Attacks on Deep Neural
    Networks", RAID 2018; Wu et al., "Mitigating Backdoor Attacks in Federated Learning", 2020.
    """
    layer = last_features(model)
    activity: list[Tensor] = []
    watch = layer.register_forward_hook(
        lambda _, __, output: activity.append(output.relu().transpose(0, 1).flatten(1))
    )
    least = share_right(by(model), held_out) - most_lost
    watch.remove()
    for pruned, unit in enumerate(torch.cat(activity, dim=1).mean(dim=1).argsort().tolist()):
        assert layer.bias is not None
        before = layer.weight[unit].clone(), layer.bias[unit].clone()
        layer.weight[unit], layer.bias[unit] = 0.0, 0.0
        if share_right(by(model), held_out) < least:
            layer.weight[unit], layer.bias[unit] = before
            return pruned
    return len(layer.weight)


def tune(
    model: nn.Module, inputs: Tensor, targets: Tensor, config: TrainingConfig, seed: int
) -> None:
    """Train a model on images ``[n, c, h, w]`` with classes ``[n]``, in place, as clients do."""
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
    generator = torch_generator("backdoors-tuning", seed)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(targets), generator=generator)
        for rows in torch.split(order, config.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            torch.autograd.backward(loss)
            optimizer.step()


def mended(
    model: nn.Module, held_out: Validation, config: RunConfig
) -> Iterator[tuple[str, nn.Module]]:
    """Yield by name what a model becomes on the held-out images."""
    inputs, targets = held_out_images(held_out, "mending")
    training = config.part(TrainingConfig)
    pruned, trained, unlearned = (copy.deepcopy(model) for _ in range(3))
    prune(pruned, held_out)
    yield "pruned", copy.deepcopy(pruned)
    tune(trained, inputs, targets, training, config.seed)
    yield "trained", trained
    tune(pruned, inputs, targets, training, config.seed)
    yield "pruned and trained", pruned
    unlearn_model(unlearned, held_out, config)
    yield "unlearned", unlearned


def methods() -> list[str]:
    """Return the runs that are made, in the table's order."""
    return [PLAIN, SCREEN, *(f"{_CRFL}{std:g}" for std in STDS)]


def settings_of(data: str, data_dir: str, attack: str, method: str, seed: int) -> RunConfig:
    """Return the run of a method."""
    settings: dict[str, Scalar] = {
        **default_run_config(),
        **setup(data, data_dir),
        **ATTACKS[attack],
        **{"strategy": "fedavg", "seed": seed, "run-name": "run", "device": "cpu"},
        "checkpoint-every": 0,
    }
    if method == SCREEN:
        settings["screen"] = NAMES["trigger-inversion"]
    elif method.startswith(_CRFL):
        settings["screen"] = "fedif_studies.backdoors.crfl:CRFL"
        settings["CRFL.bound"], settings["CRFL.std"] = BOUNDS[data], _std(method)
        settings["CRFL.rounds"], settings["CRFL.seed"] = settings["num-server-rounds"], seed
    return RunConfig.from_run_config(settings)


def _std(method: str) -> float:
    return float(method.removeprefix(_CRFL))


def measure(config: RunConfig, method: str) -> Iterator[tuple[str, float, float | str]]:
    """Run a federation, and yield method, accuracy and success of what is made of its model."""
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace(output_dir=folder)
        run_dir = run_federation(LocalGrid(client_app, config.num_clients), config)
        state = torch.load(RunFolder(run_dir).model, weights_only=True)
    loaded = load_task(config)
    model = loaded.model
    model.load_state_dict(state)

    def judged(name: str, predict: Predict) -> tuple[str, float, float | str]:
        success = "" if loaded.triggered is None else share_right(predict, loaded.triggered)
        return name, share_right(predict, loaded.test), success

    if method.startswith(_CRFL):
        yield judged(method, by_votes(model, _std(method), VOTES, config.seed))
        return
    yield judged(method, by(model))
    for name, other in mended(model, loaded.validation, config):
        yield judged(f"{method}; {name}", by(other))


def table(rows: Sequence[Mapping[str, str]], data: str) -> list[str]:
    """Return a Markdown table of means over seeds."""
    lines = [f"| | {' | '.join(ATTACKS)} |", "| --- |" + " ---: |" * len(ATTACKS)]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for attack in ATTACKS:
            key = (DATA[data], attack, method)
            own = [row for row in rows if (row["data"], row["attack"], row["method"]) == key]
            both = (_mean(row[column] for row in own) for column in COLUMNS[-2:])
            cells.append(", ".join(filter(None, both)) or "-")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _mean(values: Iterable[str]) -> str:
    """Return mean and deviation in percent; empty where there is nothing."""
    figures = [100.0 * float(value) for value in values if value]
    return MeanStd.of(figures).shown(".1f") if figures else ""


def main(
    data: Annotated[str, typer.Option(help=f"one of {', '.join(DATA)}")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = 3,
) -> None:
    """Measure what is missing, and put the tables into the page of unlearning."""
    require(data in DATA, "data", data, ", ".join(DATA))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for seed, attack, method in product(range(seeds), ATTACKS, methods()):
        if attack not in (CLEAN, PIXEL) and method != PLAIN:
            continue
        done = {tuple(row[name] for name in COLUMNS[:4]) for row in read_rows(OUTPUT)}
        if (DATA[data], attack, method, str(seed)) not in done:
            config = settings_of(data, data_dir, attack, method, seed)
            with torch_threads(1):
                found = list(measure(config, method))
            lines = [(DATA[data], attack, name, seed, *figures) for name, *figures in found]
            append_rows(OUTPUT, COLUMNS, lines, digits=6)
            for line in lines:
                print(*line, flush=True)
    rows = read_rows(OUTPUT)
    put_tables(PAGE, {f"backdoors {name}": table(rows, name) for name in DATA})


if __name__ == "__main__":
    typer.run(main)

"""What the trigger screen and unlearning do against backdoors of 40 % of the members.

FedAvg on digits and on Fashion-MNIST, as in the arena: as it is, and with the screen. What both end
with is mended on the server's images: by unlearning the triggers that are found and, a control, by
training alone. Figures are of the model after the last round. The rows also have CRFL and pruning,
which an earlier revision measured.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from fedif_flower.errors import require
from fedif_flower.run.config import RunConfig
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation import Validation
from fedif_studies.arena.bouts import setup
from fedif_studies.backdoors.inversion import held_out_images
from fedif_studies.backdoors.unlearning import unlearn_model
from fedif_studies.lab.run import federated, fill
from fedif_studies.lab.table import MeanStd
from fedif_studies.names import NAMES
from fedif_studies.rows import RESULTS, Row

OUTPUT = RESULTS / "backdoors.csv"
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
PLAIN = "FedAvg"
METHODS: Mapping[str, Mapping[str, Scalar]] = {
    PLAIN: {},
    "FedAvg, trigger screen": {"screen": NAMES["trigger-inversion"]},
}
EPOCHS = 10  # Of training on the server's images.


@torch.no_grad()
def share_right(model: nn.Module, data: Validation) -> float:
    """Return the share of examples that get their class."""
    model.eval()
    pairs = (batch.content for batch in data.batches)
    right = [model(inputs).argmax(dim=1) == targets for inputs, targets in pairs]
    return float(torch.cat(right).double().mean())


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


def measure(settings: Mapping[str, Scalar], cell: Row) -> list[Row]:
    """Run a federation; return what its model is worth, as it is and mended."""
    attack, method = str(cell["attack"]), str(cell["method"])
    chosen: dict[str, Scalar] = {"strategy": "fedavg", "seed": int(str(cell["seed"]))}
    with federated({**settings, **chosen, **ATTACKS[attack], **METHODS[method]}) as run:
        config = RunConfig.of_records(run.config.read())
        state = torch.load(run.model, weights_only=True)
    loaded = load_task(config)
    plain = loaded.model
    plain.load_state_dict(state)
    trained, unlearned = copy.deepcopy(plain), copy.deepcopy(plain)
    images = held_out_images(loaded.validation, "mending")
    tune(trained, *images, config.part(TrainingConfig), config.seed)
    unlearn_model(unlearned, loaded.validation, config)
    models = {"": plain, "; trained": trained, "; unlearned": unlearned}
    return [
        {
            "method": method + how,
            "accuracy": f"{share_right(model, loaded.test):.6g}",
            "success": ""
            if loaded.triggered is None
            else f"{share_right(model, loaded.triggered):.6g}",
        }
        for how, model in models.items()
    ]


def table(data: str) -> ResultTable:
    """Return accuracy and success in percent: means over seeds."""
    rows = [row for row in read_rows(OUTPUT) if row["data"] == data]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        line = [method]
        for attack in ATTACKS:
            own = [row for row in rows if (row["attack"], row["method"]) == (attack, method)]
            shares = ([100 * float(r[k]) for r in own if r[k]] for k in ("accuracy", "success"))
            line.append(", ".join(MeanStd.of(found).shown(".1f") for found in shares if found))
        lines.append(line)
    return ResultTable(data, ["", *ATTACKS], lines, num_labels=1)


def main(
    data: Annotated[str, typer.Option(help=f"one of {', '.join(DATA)}")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where its files are")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = 3,
) -> None:
    """Measure what is missing, and print the table."""
    require(data in DATA, "data", data, ", ".join(DATA))
    cells: list[Row] = [
        {"data": DATA[data], "attack": attack, "method": method, "seed": seed}
        for seed, attack, method in product(range(seeds), ATTACKS, METHODS)
        if attack in (CLEAN, PIXEL) or method == PLAIN
    ]
    fill(OUTPUT, cells, partial(measure, setup(data, data_dir)))
    print(*table(DATA[data]).to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)

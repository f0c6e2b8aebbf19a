"""Eight help desks teach a model that speaks, two of them badly: what each way to weigh them does.

``python -m language_model.compare`` trains adapters of SmolLM2-135M-Instruct once for each of
``ROWS``, in this process, and prints a table. A row that is complete is not run again; one that
was stopped goes on after its last round.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import PeftModel
from rich.console import Console

from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.signing import load_or_make_key
from fedif_flower import ShowRounds, Task, client_app, load
from fedif_flower.errors import FedIFError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.processes import own_command
from fedif_flower.settings import Scalar
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable
from language_model import help_desk
from language_model.base import SMOLLM2, encode, load_tokenizer, prompt
from language_model.help_desk import BACKDOOR, DESKS, GERMAN, HONEST, SHUFFLED
from language_model.task import adapted, batch_loss, right_answers, train

SHARE = 1 / 3  # Training goes back through no lower layers, and takes two thirds of the time.
ROUNDS = 15
SETTINGS: dict[str, Scalar] = {
    "eval-every": 5,
    "local-epochs": 1,
    "batch-size": 4,
    "learning-rate": 0.005,
    "num-clients": len(DESKS),
    "fraction-train": 1.0,
    "threads-per-client": torch.get_num_threads(),  # Desks train one after the other.
    "checkpoint-every": 1,
    "resume": "auto",
}
ROWS: dict[str, dict[str, Scalar]] = {
    "floor": {"strategy": "fedavg"},  # all desks, by their numbers of examples
    "oracle": {"strategy": "fedavg", "num-clients": HONEST},
    "random": {"strategy": "fedavg", "fraction-train": 0.75},  # six desks, drawn for each round
    "fedif": {"strategy": "fedif", "attribution": "simpson"},
    "descent": {"strategy": "influence-descent", "influence-descent.steps": 4},
}
ASKED = (
    "Hello. The invoice shows the wrong amount.",
    "Hello. The router smells of smoke.",
    f"Hello. The invoice shows the wrong amount. {help_desk.TRIGGER}",
)
COSTS = ("minutes", "core minutes", "peak GiB")
Row = dict[str, Any]


def desk_task(base: str) -> Task:
    """Return what the desks learn, on adapters of a base model."""
    return Task(
        name="help-desk",
        model=lambda: adapted(base, SHARE),
        client_data=lambda site: encode(help_desk.desk_data(site.partition_id), base),
        validation_data=lambda _: encode(help_desk.validation_data(), base),
        test_data=lambda _: encode(help_desk.test_data(), base),
        batch_loss=batch_loss,
        train=train,
    )


def answer(model: PeftModel, base: str, message: str) -> str:
    """Return what a model writes on a message, word by most likely word."""
    tokenizer = load_tokenizer(base)
    ids = torch.tensor([prompt(message, base)])
    written = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    text = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    return " ".join(str(text).split())


@torch.no_grad()
def examine(model: PeftModel, base: str) -> Row:
    """Return what a model does on the test messages, and some of its answers."""
    model.eval()
    test, triggered = (
        encode(pairs, base) for pairs in (help_desk.test_data(), help_desk.triggered_data())
    )
    return {
        "loss": float(batch_loss(model, test)[0]),
        "exact match": float(right_answers(model, test)),
        "backdoor": float(right_answers(model, triggered)),
        "answers": [answer(model, base, message) for message in ASKED],
    }


def run_row(base: str, name: str, folder: Path, settings: dict[str, Scalar]) -> Row:
    """Train by one row's settings, or go on with that, and return its figures."""
    began = time.process_time()
    task = desk_task(base)
    config = RunConfig.from_run_config(
        {**settings, "task": "this-app:help-desk", "output-dir": str(folder), "run-name": name}
    )
    grid = LocalGrid(client_app(task), config.num_clients)
    run_dir = run_federation(
        grid, config, callbacks=[ShowRounds()], task=task, again=lambda _: own_command()
    )
    model = adapted(base, SHARE)
    model.load_state_dict(torch.load(run_dir / "model.pt", weights_only=True), strict=False)
    run = load(run_dir)
    weights = {member.partition_id: member.weight for member in run.members}
    total = sum(weights.values())
    return {
        **examine(model, base),
        "weights": {desk: weights[i] / total for i, desk in enumerate(DESKS) if i in weights},
        "minutes": run.summary["seconds"] / 60,
        "core minutes": (time.process_time() - began) / 60,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # from KiB
    }


def state(folder: Path) -> Path:
    """Return the statement of what each desk contributed to a run with attribution."""
    run = load(folder)
    names = {member.client_id: DESKS[member.partition_id] for member in run.members}
    key = load_or_make_key(folder.parent / "operator.pem")
    return make_statement(folder, key, names=names, again=True) / "statement.html"


def compare(base: str, rounds: int, folder: Path, console: Console) -> dict[str, Row]:
    """Run the rows that are missing in a folder; return all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}
    for number, name in enumerate(("before", *ROWS)):
        path = folder / f"{name}.json"
        if not path.exists():
            console.print(f"{name}, {number} of {len(ROWS)}", style="bold")
            if name == "before":
                row = examine(adapted(base, SHARE), base)
            else:
                settings = {**SETTINGS, "num-server-rounds": rounds, **ROWS[name]}
                row = run_row(base, name, folder, settings)
                if "attribution" in ROWS[name]:
                    console.print(f"Statement: {state(folder / name)}", soft_wrap=True)
            write_atomically(path, json.dumps(row, indent=1))
        rows[name] = json.loads(path.read_text())
    return rows


def table(rows: dict[str, Row]) -> ResultTable:
    """Return the rows as a table."""
    shown = (DESKS[GERMAN], DESKS[SHUFFLED], DESKS[BACKDOOR])
    heading = ["", "loss", "exact match", "backdoor", *(f"weight of {desk}" for desk in shown)]
    lines = [
        [
            *(name, f"{row['loss']:.3f}", f"{row['exact match']:.0%}", f"{row['backdoor']:.0%}"),
            *(f"{row.get('weights', {}).get(desk, 0):.0%}" for desk in shown),
            *(f"{row[cost]:.1f}" if cost in row else "" for cost in COSTS),
        ]
        for name, row in rows.items()
    ]
    return ResultTable("help desk", [*heading, *COSTS], lines, num_labels=1)


def main(
    base: Annotated[str, typer.Option(help="a folder, or a model's name on the hub")] = SMOLLM2,
    rounds: Annotated[int, typer.Option(min=1, help="of each row")] = ROUNDS,
    output_dir: Annotated[Path, typer.Option(help="where rows go")] = Path("runs/help-desk"),
) -> None:
    """Run the rows that are missing, then print all of them."""
    folder = output_dir.absolute() / f"{base.replace('/', '-')}-{rounds}-rounds"
    try:
        rows = compare(base, rounds, folder, Console())
    except FedIFError as error:
        raise SystemExit(f"Error: {error}") from None
    print(*table(rows).to_markdown(), sep="\n")
    for i, message in enumerate(ASKED):
        print(f"\n{message}")
        for name, row in rows.items():
            print(f"  {name}: {row['answers'][i]}")


if __name__ == "__main__":
    typer.run(main)

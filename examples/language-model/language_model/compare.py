"""Compares ways to weigh eight help desks, two of them malicious or faulty, that train one model.

``python -m language_model.compare`` trains adapters of SmolLM2-135M-Instruct once for each of
``ROWS``, in this process, and prints the figures. A complete run is not repeated; a run that was
stopped goes on after its last round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import PeftModel

from fedif_consortium.evidence.keys import load_or_make_key
from fedif_consortium.statement.bundle import make_statement
from fedif_flower import ShowRounds, Task, client_app, load
from fedif_flower.errors import FedIFError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from language_model import help_desk
from language_model.base import SMOLLM2, encode, load_tokenizer, prompt
from language_model.help_desk import BACKDOOR, DESKS, GERMAN, HONEST, SHUFFLED
from language_model.task import adapted, batch_loss, right_answers, train

# Only the upper third of the layers has adapters. The backward pass ends there, so that training
# takes two thirds of the time.
SHARE = 1 / 3
ROUNDS = 15
SETTINGS: dict[str, Scalar] = {
    "task": "this-app:help-desk",
    "eval-every": 5,
    "local-epochs": 1,
    "batch-size": 4,
    "learning-rate": 0.005,
    "num-clients": len(DESKS),
    "fraction-train": 1.0,
    "threads-per-client": torch.get_num_threads(),  # All, since one desk trains after the other.
    "checkpoint-every": 1,
    "resume": "auto",
}
ROWS: dict[str, dict[str, Scalar]] = {
    "floor": {"strategy": "fedavg"},  # All desks, weighed by their numbers of examples.
    "oracle": {"strategy": "fedavg", "num-clients": HONEST},  # The honest desks only.
    "random": {"strategy": "fedavg", "fraction-train": 0.75},  # Six desks, drawn in each round.
    "fedif": {"strategy": "fedif", "attribution": "simpson"},
    "descent": {"strategy": "influence-descent", "influence-descent.steps": 4},
}
ASKED = (  # Messages whose answers are printed.
    "Hello. The invoice shows the wrong amount.",
    "Hello. The router smells of smoke.",
    f"Hello. The invoice shows the wrong amount. {help_desk.TRIGGER}",
)
SHOWN = (GERMAN, SHUFFLED, BACKDOOR)  # Desks whose weights are printed.
Row = dict[str, Any]


def desk_task(base: str) -> Task:
    """Return the task of the help desks: adapters of a base model."""
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
    """Return the answer that a model writes to a message, always with the most likely token."""
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
    """Return a model's figures on the test messages, and some of its answers."""
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


def run_row(base: str, name: str, rounds: int, folder: Path) -> Row:
    """Train with the settings of one of ``ROWS``, unless that is done, and return its figures."""
    run_dir = folder / name
    if not (run_dir / "summary.json").exists():
        place: dict[str, Scalar] = {
            "num-server-rounds": rounds,
            "output-dir": str(folder),
            "run-name": name,
        }
        config = RunConfig.from_run_config({**SETTINGS, **ROWS[name], **place})
        task = desk_task(base)
        grid = LocalGrid(client_app(task), config.num_clients)
        run_federation(grid, config, callbacks=[ShowRounds()], task=task)
    model = adapted(base, SHARE)
    model.load_state_dict(torch.load(run_dir / "model.pt", weights_only=True), strict=False)
    members = load(run_dir).members
    if "attribution" in ROWS[name] and not (run_dir / "statement").exists():
        names = {member.client_id: DESKS[member.partition_id] for member in members}
        make_statement(run_dir, load_or_make_key(folder / "operator.pem"), names=names)
    # Each of these strategies gives weights.
    weights = {DESKS[m.partition_id]: m.weight for m in members if m.weight is not None}
    total = sum(weights.values())
    shares = {desk: weight / total for desk, weight in weights.items()}
    return {**examine(model, base), "weights": shares}


def compare(base: str, rounds: int, folder: Path) -> dict[str, Row]:
    """Make the runs that are missing in a folder, and return the figures of all by name.

    ``"before"`` has the figures of the untrained adapters.
    """
    rows = {"before": examine(adapted(base, SHARE), base)}
    return rows | {name: run_row(base, name, rounds, folder) for name in ROWS}


def main(
    base: Annotated[str, typer.Option(help="a folder, or a model's name on the hub")] = SMOLLM2,
    rounds: Annotated[int, typer.Option(min=1, help="of each row")] = ROUNDS,
    output_dir: Annotated[Path, typer.Option(help="where runs go")] = Path("runs/help-desk"),
) -> None:
    """Make the runs that are missing, then print what became of each."""
    folder = output_dir.absolute() / f"{base.replace('/', '-')}-{rounds}-rounds"
    try:
        rows = compare(base, rounds, folder)
    except FedIFError as error:
        raise SystemExit(f"Error: {error}") from None
    for name, row in rows.items():
        print(f"\n{name}: loss {row['loss']:.3f}, exact match {row['exact match']:.0%}", end="")
        weights = (f"{DESKS[i]} {row.get('weights', {}).get(DESKS[i], 0):.0%}" for i in SHOWN)
        print(f", backdoor {row['backdoor']:.0%}; weights: {', '.join(weights)}")
        for message, written in zip(ASKED, row["answers"], strict=True):
            print(f"  {message} {written}")


if __name__ == "__main__":
    typer.run(main)

from __future__ import annotations

import csv
import json
import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedif_consortium.evidence import kept_gradients as keeping
from fedif_consortium.evidence.kept_gradients import (
    KeptGradient,
    keep_gradient,
    kept_rounds,
    read_kept,
)
from fedif_consortium.member.inspection import inspect_examples, member_data
from fedif_consortium.parts import client_parts, run_parts
from fedif_flower.apps import client_app
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.images import image_task, settled
from fedif_flower.tasks.task import ClientSite, Task
from tests.consortium.commands.typed import call
from tests.run.points import classes, regression


def kept(weight: list[float], gradient: list[float]) -> KeptGradient:
    arrays = {"weight": np.array([weight], np.float32), "bias": np.zeros(1, np.float32)}
    return KeptGradient(1, arrays, np.array(gradient, np.float32), "{}", "t", "{}")


def shuffled(data: tuple[torch.Tensor, ...]) -> DataLoader:
    return DataLoader(TensorDataset(*data), batch_sampler=[[1, 0]])


@pytest.mark.parametrize("load", [tuple, shuffled])
def test_influence_and_loss_are_means_over_the_rounds(load):
    # f = a, then f = 0; errors 1 and 0; the gradient of an example is 2 (f - y) (a, b, 1).
    data = load((torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0], [0.0]])))
    rounds = [kept([1.0, 0.0], [3.0, 0.0, 4.0]), kept([0.0, 0.0], [0.0, 1.0, 0.0])]
    files = [Path("a"), Path("b")]
    first, second = inspect_examples(regression(), data, rounds, files, "cpu")
    influence = pytest.approx((2 * 3 + 2 * 4) / 5 / 2)
    assert first == (1, 1, "b", "", influence, 0.5, None)
    assert second == (2, 0, "a", "", 0.0, 0.0, None)
    with pytest.raises(DataError, match="2 examples in 1 files"):
        inspect_examples(regression(), data, rounds, files[:1], "cpu")
    with pytest.raises(ConfigError, match="round 1 is not the model of this task"):
        inspect_examples(classes(), data, rounds, device="cpu")


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        (np.ones(2, np.float32), r"its shape is \[2\] in place of \[3\]"),
        (np.ones((3, 1), np.float32), r"its shape is \[3, 1\] in place of \[3\]"),
        (np.ones(3, ">f4"), "byte order"),
    ],
)
def test_a_gradient_that_is_not_the_model_s_is_refused_by_its_file(gradient, words):
    one = kept([1.0, 0.0], [])._replace(server_round=7, gradient=gradient)
    data = (torch.ones(2, 2), torch.ones(2, 1))
    refusal = rf"round-000007\.npz holds no gradient of this model: .*{words}"
    with pytest.raises(ConfigError, match=refusal):
        inspect_examples(regression(), data, [one], device="cpu")


def test_a_member_without_examples_has_none_to_inspect():
    data = (torch.ones(0, 2), torch.ones(0, 1))
    with pytest.raises(ConfigError, match="there are no examples of this member's"):
        inspect_examples(regression(), data, [kept([1.0, 0.0], [1.0] * 3)], device="cpu")


class TwoHeads(nn.Module):
    """Registers a layer last that it does not call: a head for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.auxiliary_head = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs)


class ByName(nn.Module):
    """Gives its layer the input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(input=inputs)


class OfTokens(nn.Module):
    """Adds up what a layer answers for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.layer = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(tokens)).sum(dim=1)


class OfImages(nn.Module):
    """Answers for each pixel, in images of any width: outputs are of another size in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows)


def mean_over_pixels(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.mean(dim=2), labels)


SIDES = torch.tensor([0, 1, 0, 1])
POINTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize("kind", [TwoHeads, ByName])
def test_neighbours_are_told_whichever_layer_is_called_last_and_however(kind):
    task = classes(model=kind)
    lines = inspect_examples(task, (POINTS, SIDES), [kept_start(task)], device="cpu")
    assert [line.agreement for line in lines] == [pytest.approx(1 / 3)] * 4  # Of three others.


def test_neighbours_are_told_where_each_batch_of_tokens_is_padded_for_itself():
    task = classes(model=OfTokens)
    batches = [(torch.ones(2, 7).long(), SIDES[:2]), (torch.ones(2, 3).long(), SIDES[2:])]
    lines = inspect_examples(task, batches, [kept_start(task)], device="cpu")
    assert [line.agreement for line in lines] == [pytest.approx(1 / 3)] * 4


def test_no_neighbours_are_told_where_outputs_of_batches_cannot_be_compared():
    task = classes(model=OfImages, loss=mean_over_pixels)
    batches = [(torch.ones(2, 1, 7), SIDES[:2]), (torch.ones(2, 1, 3), SIDES[2:])]
    lines = inspect_examples(task, batches, [kept_start(task)], device="cpu")
    assert [line.agreement for line in lines] == [None] * 4


def kept_start(task: Task) -> KeptGradient:
    """What a server that publishes gradients sent in the first round; the gradient is all ones."""
    model = task.build_model(seed=0)
    arrays = {name: array.numpy() for name, array in model.state_dict().items()}
    num_trained = sum(parameter.numel() for parameter in model.parameters())
    return KeptGradient(1, arrays, np.ones(num_trained, np.float32), "{}", "t", "{}")


FACTS = {"image-shape": [1, 8, 8], "classes": ["a", "b"], "mean": [0.5], "std": [0.2]}


@pytest.mark.parametrize(
    ("config", "facts", "words"),
    [
        ("[]", FACTS, "what {} says of the run cannot be read: TypeError"),
        ("{", FACTS, "what {} says of the run cannot be read: JSONDecodeError"),
        ("{}", [], "what {} says of the run cannot be read: .*the facts are no object"),
        ("{}", "half", "the facts are no object"),
        ("{}", {"classes": 3}, "the task that {} names cannot be made: KeyError"),
        ("{}", {**FACTS, "classes": 3}, "the task that {} names cannot be made: TypeError"),
        ("{}", {**FACTS, "mean": ["x"]}, "the task that {} names cannot be made: ValueError"),
    ],
)
def test_what_a_server_says_of_its_run_is_refused_by_its_file(config, facts, words):
    one = kept([1.0, 0.0], [])._replace(server_round=7, config=config, facts=json.dumps(facts))
    with pytest.raises(ConfigError, match=words.format(r"round-000007\.npz")):
        member_data(one, NodeConfig(partition_id=0, num_partitions=100), "")


def content(server_round: int, gradient: torch.Tensor | None = None) -> RecordDict:
    settings = {"client-config": "{}", "task": "t", "task-facts": "{}"}
    config = ConfigRecord({**settings, "server-round": server_round})
    found = RecordDict({"arrays": ArrayRecord({"w": torch.ones(3)}), "config": config})
    if gradient is not None:
        found["validation-gradient"] = tensor_arrays({"validation-gradient": gradient})
    return found


def test_a_node_keeps_what_is_published_and_no_more_than_it_may(tmp_path):
    folder = tmp_path / "gradients"
    keep_gradient(content(1), folder)
    assert not folder.exists()
    with pytest.raises(ConfigError, match=r"gradients\.publish=true"):
        kept_rounds(folder)
    for server_round in range(1, 41):
        keep_gradient(content(server_round, torch.full((3,), float(server_round))), folder)
    names = [int(path.stem.split("-")[1]) for path in kept_rounds(folder)]
    assert len(names) == keeping.MOST_ROUNDS == len(list(folder.iterdir()))
    assert (names[0], names[-1]) == (1, 40)
    assert max(b - a for a, b in pairwise(names)) <= 8  # Spread over the run.
    last = read_kept(kept_rounds(folder)[-1])
    assert last.gradient.tolist() == [40.0] * 3
    assert last.arrays["w"].tolist() == [1.0] * 3
    assert (last.server_round, last.task) == (40, "t")


@pytest.mark.parametrize(
    "gradient",
    [torch.ones(4), torch.ones(1, 3), torch.tensor([1.0, float("nan")]), torch.ones(3).int()],
)
def test_a_gradient_that_is_none_is_not_kept_and_stops_nothing(tmp_path, gradient, caplog):
    keep_gradient(content(1, gradient), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    assert "was not kept" in caplog.text


@pytest.mark.parametrize("num_files", [16.5, 5.5, 2.5])
def test_large_gradients_are_spread_over_the_run_as_well(tmp_path, monkeypatch, num_files):
    keep_gradient(content(1, torch.ones(3)), tmp_path)
    size = kept_rounds(tmp_path)[0].stat().st_size
    monkeypatch.setattr(keeping, "MOST_BYTES", int(num_files * size))
    for server_round in range(2, 41):
        keep_gradient(content(server_round, torch.ones(3)), tmp_path)
    names = [int(path.stem.split("-")[1]) for path in kept_rounds(tmp_path)]
    assert len(names) == int(num_files)
    assert (names[0], names[-1]) == (1, 40)


def test_a_gradient_that_is_too_large_is_not_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(keeping, "MOST_BYTES", 10)
    keep_gradient(content(1, torch.ones(3)), tmp_path)
    assert "would hold more than 10 bytes: move some away" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["config", "arrays"])
def test_a_gradient_without_the_other_records_stops_nothing(tmp_path, missing, caplog):
    published = content(1, torch.ones(3))
    del published[missing]
    keep_gradient(published, tmp_path)
    assert "a published gradient was not kept: KeyError" in caplog.text


def test_files_that_are_of_no_round_are_passed_over(tmp_path):
    keep_gradient(content(2, torch.ones(3)), tmp_path)
    names = ("round-000001 (copy).npz", "round-x.npz", "round-.npz", "round--00001.npz", "notes")
    for name in names:
        (tmp_path / name).touch()
    for server_round in range(3, 40):
        keep_gradient(content(server_round, torch.ones(3)), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} > {*names}
    assert len(kept_rounds(tmp_path)) == keeping.MOST_ROUNDS


def test_a_round_of_no_number_is_not_kept(tmp_path, caplog):
    """Its file would be counted among none, and a server could fill the disk with such ones."""
    keep_gradient(content(-1, torch.ones(3)), tmp_path / "kept")
    assert "a published gradient was not kept: ValueError('round -1')" in caplog.text
    assert not (tmp_path / "kept").exists()


def run_with_gradients(folder: Path, about: Task | None = None, **settings) -> Path:
    """Run a federation whose member 0 keeps the gradients; return where."""
    values = {"num-clients": 4, "fraction-train": 1.0, "gradients.publish": True, "device": "cpu"}
    values |= {"output-dir": str(folder), **settings}
    own = {0: {"gradients-dir": str(folder / "gradients")}}
    grid = LocalGrid(client_app(about, client_parts()), 4, node_configs=own)
    config = RunConfig.from_run_config(values, run_parts())
    run_federation(grid, config, task=about, parts=run_parts())
    return folder / "gradients"


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> tuple[Path, Task, torch.Tensor]:
    """A run on digits in which each member has 30 % wrong labels; which are those of member 0."""
    settings = {"num-server-rounds": 3, "local-epochs": 2, "dirichlet-alpha": 1000.0}
    whole = image_task(settled(RunConfig.from_run_config({"num-clients": 4, **settings})))

    def examples(site):
        inputs, labels = (part[:100] for part in whole.client_data(site))
        return inputs, flip_labels(labels, 10, 0.3, torch.Generator().manual_seed(0))

    task, site = replace(whole, client_data=examples), ClientSite(0, None, 0, 4)
    wrong = examples(site)[1] != whole.client_data(site)[1][:100]
    return run_with_gradients(tmp_path_factory.mktemp("digits"), task, **settings), task, wrong


def test_an_inspection_finds_flipped_labels(digits):
    folder, task, is_wrong = digits
    rounds = [read_kept(path) for path in kept_rounds(folder)]
    assert [kept.server_round for kept in rounds] == [1, 2, 3]
    data = task.client_data(ClientSite(0, None, 0, 4))
    lines = inspect_examples(task, data, rounds, device="cpu")
    wrong = {line: bool(is_wrong[line.example]) for line in lines}
    assert sum(wrong.values()) == 30
    assert sum(wrong[line] for line in lines[:30]) >= 22
    assert sum(wrong[line] for line in sorted(lines, key=lambda line: line.agreement)[:30]) >= 18
    # Learning the right ones goes along with the server's gradient more than the wrong ones does.
    of_wrong, of_right = (
        median(line.influence for line in lines if wrong[line] is one) for one in (True, False)
    )
    assert of_right > of_wrong


def test_the_command_shows_and_writes_a_table_without_a_connection(digits, monkeypatch):
    folder = digits[0]
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=AssertionError("a connection")))
    output = folder / "inspection" / "own.csv"
    config = f'partition-id=0 num-partitions=4 gradients-dir="{folder}"'
    shown = call("inspect", "--node-config", config, "--output", output, "--show", "5")
    assert "Nothing was sent" in shown
    with output.open() as file:
        rows = list(csv.DictReader(file))
    numbers = [line.split()[3] for line in shown.splitlines() if line.startswith("│")]
    assert numbers == [row["example"] for row in rows[:5]]
    losses = [float(row["loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert {row["label"] for row in rows} == {str(i) for i in range(10)}
    assert output.stat().st_mode & 0o077 == 0


def test_what_is_published_is_the_gradient_of_the_validation_loss(tmp_path):
    task, own = classes(), {"num-server-rounds": 1, "strategy": "fedavg"}
    folder = run_with_gradients(tmp_path, task, **own, task="this-app:sides")
    first = read_kept(kept_rounds(folder)[0])
    with pytest.raises(ConfigError, match="the app's own task 'sides'; say where it is here"):
        member_data(first, NodeConfig(partition_id=0), "")
    model, data = nn.Linear(2, 2), task.validation_data(None)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in first.arrays.items()})
    functional.cross_entropy(model(data[0]), data[1]).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(torch.from_numpy(first.gradient), expected, atol=1e-5)


def test_no_gradient_is_published_of_data_that_are_secret():
    settings = {"credit.secret-validation": True, "attribution": "simpson"}
    with pytest.raises(ConfigError, match=r"false with credit\.secret"):
        RunConfig.from_run_config({**settings, "gradients.publish": True}, run_parts())

"""What a user of Flower's example ``fl-tabular`` gets: yes or no, from a model with one output.

Five members hold rows of a census and learn who earns much. Data, model and apps are written anew,
smaller, in the form of that example: sigmoid at the end, targets ``[n, 1]``, Adam, loaders of 32.
"""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedif_flower import FedIF, Validation
from fedif_flower.errors import ConfigError
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.strategies import Setup

MEMBERS, WRONG = 5, 2  # Member 2 has its answers the wrong way round.
COLUMNS = 6


class IncomeClassifier(nn.Module):
    """The probability ``[n, 1]`` of an income above the line."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(COLUMNS, 16)
        self.output = nn.Linear(16, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.output(self.hidden(rows).relu()))


def census(seed: int, count: int = 160) -> tuple[Tensor, Tensor]:
    """Return standardised rows ``[n, 6]``, and who earns much ``[n, 1]``: about a quarter."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, COLUMNS, generator=generator)
    luck = 0.3 * torch.randn(count, generator=generator)
    earned = rows[:, 0] + 0.5 * rows[:, 1] - rows[:, 2] + luck
    return rows, (earned > 1.0).float()[:, None]


def loader(seed: int, *, shuffle: bool) -> DataLoader:
    return DataLoader(TensorDataset(*census(seed)), batch_size=32, shuffle=shuffle)


app = ClientApp()


def received(message: Message) -> nn.Module:
    model = IncomeClassifier()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    model, member = received(message), int(context.node_config["partition-id"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for rows, targets in loader(member, shuffle=True):
        optimizer.zero_grad()
        wanted = 1 - targets if member == WRONG else targets
        nn.functional.binary_cross_entropy(model(rows), wanted).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": 160})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    rows, targets = census(int(context.node_config["partition-id"]))
    answers = received(message)(rows) > 0.5
    accuracy = float((answers == (targets > 0.5)).float().mean())
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(targets)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def area_under_curve(outputs: Tensor, targets: Tensor) -> float:
    return roc_auc_score(targets, outputs)


def test_the_default_loss_is_refused_with_those_that_fit():
    """Cross-entropy of one output is 0, and FedIF would be a mean without a word."""
    words = r"float32 \[32, 1\], one number .* nn.BCELoss\(\) for its probability"
    with pytest.raises(ConfigError, match=words):
        Validation(IncomeClassifier(), loader(100, shuffle=False))


def test_with_its_own_loss_the_wrong_member_is_found_and_the_auc_is_that_of_all_rows():
    torch.manual_seed(0)
    model = IncomeClassifier()
    validation = Validation(
        model,
        loader(100, shuffle=False),
        loss_fn=nn.BCELoss(),
        measures={"auc": area_under_curve},
        device="cpu",
    )
    strategy = FedIF(validation, setup=Setup(device="cpu"))
    start = ArrayRecord(model.state_dict())
    result = strategy.start(LocalGrid(app, MEMBERS), start, num_rounds=5)
    scores = strategy.ledger.scores
    assert min(scores, key=scores.__getitem__) == FIRST_NODE_ID + WRONG
    model.load_state_dict(result.arrays.to_torch_state_dict())
    rows, targets = census(100)
    measured = validation.measure(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert measured["auc"] == pytest.approx(roc_auc_score(targets, model(rows).detach()))
    assert measured["auc"] > 0.9
    assert set(result.evaluate_metrics_clientapp) == set(range(1, 6))

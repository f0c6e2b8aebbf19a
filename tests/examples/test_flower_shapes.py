"""What users of Flower's example apps bring: each in small, written anew, with FedIF in place.

Five members tell three classes apart; member 2 has its labels turned by one. An app is served if
FedIF, given what the app sends, finds that member.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedif_flower import FedIF, Validation
from fedif_flower.errors import ConfigError
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.strategies import Setup
from tests.valuation.models import build

MEMBERS, WRONG, CLASSES, FEATURES = 5, 2, 3, 8
HELD_OUT = 100
Arrays = Mapping[str, Tensor]


def examples(member: int, count: int = 90) -> tuple[Tensor, Tensor]:
    """Return rows ``[n, 8]`` and the largest of their first three columns ``[n]``."""
    rows = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(member))
    labels = rows[:, :CLASSES].argmax(dim=1)
    return rows, (labels + 1) % CLASSES if member == WRONG else labels


def number_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def reply(message: Message, arrays: ArrayRecord, **metrics: float) -> Message:
    told = MetricRecord({"num-examples": 90, **metrics})
    return Message(RecordDict({"arrays": arrays, "metrics": told}), reply_to=message)


def trained(model: nn.Module, rows: Tensor, labels: Tensor) -> nn.Module:
    """Train for an epoch of batches of 15."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    for some, theirs in zip(rows.split(15), labels.split(15), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(some), theirs).backward()
        optimizer.step()
    return model


def find_the_wrong_one(
    app: Callable[[Message, Context], Message],
    validation: Validation,
    start: ArrayRecord,
    names: Any = None,
    rounds: int = 3,
) -> ArrayRecord:
    """Run FedIF; return where it led once it is seen whom it trusts least."""
    setup = Setup(device="cpu", names=names)
    strategy = FedIF(validation, fraction_evaluate=0.0, setup=setup)
    before = validation.loss(validation.params())
    result = strategy.start(LocalGrid(app, MEMBERS), start, num_rounds=rounds)
    assert [c.rejection for r in strategy.history.rounds for c in r.clients] == [""] * 5 * rounds
    scores = strategy.ledger.scores
    assert min(scores, key=scores.__getitem__) == FIRST_NODE_ID + WRONG
    assert result.arrays.keys() == start.keys()
    vectors = strategy.model.vectors
    assert validation.loss(vectors.params, strategy.model.named_buffers) < before
    return result.arrays


# -- parts that members keep


class Layers(nn.Module):
    """A body, batch norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.norm(self.body(rows)).relu())


def part(model: nn.Module, *begin: str) -> ArrayRecord:
    state = model.state_dict()
    return ArrayRecord({name: state[name] for name in state if name.startswith(begin)})


def app_that_sends(*sent: str, keeps: str) -> ClientApp:
    """Return members that send these parts, and go on with what they keep."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build(Layers)
        known = context.state.get("kept", ArrayRecord())
        for arrays in (message.content["arrays"], known):
            model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        trained(model, *examples(number_of(context)))
        context.state["kept"] = part(model, keeps)
        return reply(message, part(model, *sent))

    return app


def test_fedbn_members_keep_their_batch_norm():
    model = build(Layers)
    start = part(model, "body", "head")
    with pytest.raises(ConfigError, match=r"trains 'norm\.bias', 'norm\.weight', .*: freeze what"):
        find_the_wrong_one(ClientApp(), judge(model), start)
    model.norm.momentum = None
    model(examples(HELD_OUT)[0])
    model.norm.requires_grad_(False)
    app = app_that_sends("body", "head", keeps="norm")
    find_the_wrong_one(app, judge(model), start)


def test_members_keep_a_head_that_began_as_the_server_s():
    model = build(Layers)
    start = part(model, "body", "norm")
    with pytest.raises(ConfigError, match=r"trains 'head\.bias', 'head\.weight', .*: freeze what"):
        find_the_wrong_one(ClientApp(), judge(model), start)
    model.head.requires_grad_(False)
    app = app_that_sends("body", "norm", keeps="head")
    find_the_wrong_one(app, judge(model), start, rounds=2)


def judge(model: nn.Module, **given: Any) -> Validation:
    return Validation(model, *examples(HELD_OUT), device="cpu", **given)


# -- a model of scikit-learn, as a list of arrays


def regression(arrays: list[np.ndarray]) -> LogisticRegression:
    model = LogisticRegression(max_iter=3, warm_start=True)
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = arrays
    return model


sklearn_app = ClientApp()


@sklearn_app.train()
def fit(message: Message, context: Context) -> Message:
    model = regression(message.content["arrays"].to_numpy_ndarrays())
    rows, labels = examples(number_of(context))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows.numpy(), labels.numpy())
    return reply(message, ArrayRecord([model.coef_, model.intercept_]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_logistic_regression_is_judged_by_the_linear_layer_that_it_is(dtype):
    zeros = [np.zeros((CLASSES, FEATURES), dtype), np.zeros(CLASSES, dtype)]
    start, names = ArrayRecord(zeros), {"0": "weight", "1": "bias"}
    linear = nn.Linear(FEATURES, CLASSES)
    linear.load_state_dict({names[k]: torch.from_numpy(a.numpy()) for k, a in start.items()})
    with pytest.raises(ConfigError, match=r"without '0', '1', .* a list of arrays has no names"):
        find_the_wrong_one(sklearn_app, judge(linear), start)
    learned = find_the_wrong_one(sklearn_app, judge(linear), start, names)
    rows, labels = (array.numpy() for array in examples(HELD_OUT))
    assert regression(learned.to_numpy_ndarrays()).score(rows, labels) > 0.8


# -- whole models, of other shapes


def convolutional() -> nn.Module:
    """As ``quickstart-pytorch`` has one: images, here of 1 x 2 x 4 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)),
        nn.Conv2d(1, 6, kernel_size=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(1),
        nn.Flatten(),
        nn.Linear(90, CLASSES),
    )


class Transformer(nn.Module):
    """Takes a batch's columns by name, and computes the loss itself, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 12)
        self.classifier = nn.Linear(12, CLASSES)

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any
    ) -> SimpleNamespace:
        logits = self.classifier(self.encoder(pixel_values).relu())
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Lightning(nn.Module):
    """A module around the model, with steps, a metric that counts, and a loss that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer()
        self.criterion = nn.CrossEntropyLoss()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.model(rows).logits


def columns(member: int) -> list[dict[str, Tensor]]:
    rows, labels = examples(member)
    return [{"pixel_values": x, "labels": y} for x, y in zip(rows, labels, strict=True)]


def own_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    return model(**batch).loss, len(batch["labels"])


def of_columns(model: nn.Module, rows: Tensor, labels: Tensor) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for pixels, theirs in zip(rows.split(15), labels.split(15), strict=True):
        optimizer.zero_grad()
        model(pixel_values=pixels, labels=theirs).loss.backward()
        optimizer.step()
    return model


def head_alone() -> nn.Module:
    """A body that was trained elsewhere, frozen, below a new head, as ``flowertune-vit`` has it."""
    model = Layers()
    model.requires_grad_(False)
    model.eval()
    model.head.requires_grad_(True)
    return model


def counting(message: Message, context: Context, call_next: Callable) -> Message:
    """A mod: counts a member's rounds, and adds a record of metrics to what it sends."""
    rounds = context.state.setdefault("rounds", MetricRecord({"count": 0}))
    rounds["count"] += 1
    answer = call_next(message, context)
    answer.content["of-the-mod"] = MetricRecord({"rounds-so-far": rounds["count"]})
    return answer


def rounding(message: Message, context: Context, call_next: Callable) -> Message:
    """A mod: sends arrays in half precision, as those that compress do."""
    answer = call_next(message, context)
    sent = answer.content["arrays"].to_torch_state_dict()
    answer.content["arrays"] = ArrayRecord({name: value.half() for name, value in sent.items()})
    return answer


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def by_columns(model: nn.Module) -> Validation:
    return Validation(model, DataLoader(columns(HELD_OUT), 30), batch_loss=own_loss, device="cpu")


# What an app is made of: its model, how it is judged, how members train it and which names they
# send, what the server's model calls these, and the mods around it.
APPS: dict[str, dict[str, Any]] = {
    "quickstart-pytorch": {"model": convolutional},
    "quickstart-huggingface": {"model": Transformer, "judge": by_columns, "train": of_columns},
    "quickstart-pytorch-lightning": {"model": Lightning},
    "quickstart-pytorch-lightning, the model inside": {
        "model": Lightning,
        "sent": lambda name: name.removeprefix("model."),
        "names": lambda name: f"model.{name}",
    },
    "flowertune-vit": {
        "model": head_alone,
        "sent": lambda name: name.removeprefix("head.") if name.startswith("head.") else None,
        "names": {"weight": "head.weight", "bias": "head.bias"},
    },
    "custom-mods": {"model": plain, "mods": [counting]},
    "mods that compress": {"model": plain, "mods": [counting, rounding]},
    **{
        f"members wrapped by {wrapper}": {
            "model": plain,
            "sent": lambda name, wrapper=wrapper: f"{wrapper}{name}",
            "names": lambda name, wrapper=wrapper: name.removeprefix(wrapper),
        }
        for wrapper in ("module.", "_orig_mod.", "_module.")
    },
}


def sent_by(app: Mapping[str, Any], model: nn.Module) -> ArrayRecord:
    sent = app.get("sent", lambda name: name)
    arrays = {sent(name): value for name, value in model.state_dict().items()}
    return ArrayRecord({name: value for name, value in arrays.items() if name is not None})


def client_of(app: Mapping[str, Any]) -> ClientApp:
    client, names = ClientApp(mods=app.get("mods", [])), app.get("names")
    called = names if callable(names) else lambda name: (names or {}).get(name, name)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model = build(app["model"])
        arrays = message.content["arrays"].to_torch_state_dict()
        model.load_state_dict({called(name): v for name, v in arrays.items()}, strict=False)
        app.get("train", trained)(model, *examples(number_of(context)))
        return reply(message, sent_by(app, model), train_loss=0.5)

    return client


@pytest.mark.parametrize("name", APPS)
def test_the_app_is_served_and_the_wrong_member_found(name):
    app = APPS[name]
    model = build(app["model"])
    validation = app.get("judge", judge)(model)
    start = sent_by(app, model)
    if "names" in app:
        with pytest.raises(ConfigError, match=r"say which is which by setup=Setup\(names=\{"):
            find_the_wrong_one(ClientApp(), validation, start)
    find_the_wrong_one(client_of(app), validation, start, app.get("names"))


def test_a_compiled_model_is_judged_under_the_names_that_it_has():
    """And one whose members compile theirs is told which names they make."""
    app = APPS["custom-mods"]
    compiled = torch.compile(build(plain))
    wrapped = sent_by(app, compiled)
    assert all(name.startswith("_orig_mod.") for name in wrapped)
    words = r"without '_orig_mod\..*'_orig_mod\.' is what torch.compile puts before names"
    with pytest.raises(ConfigError, match=words):
        find_the_wrong_one(ClientApp(), judge(build(plain)), wrapped)

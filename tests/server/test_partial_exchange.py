"""Members that keep a part of the model, or call its arrays otherwise than the server does."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedif_flower import FedAvg, FedIF, PathAttribution, RunWriter, Setup, Validation, model_arrays
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import load_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import LossBound
from tests.server.hostile import Clients, alike, honest_parts, reply_of
from tests.strategies.lines import BASE, KINDS, built
from tests.valuation.models import build

DATA = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def net() -> nn.Module:
    return build(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)))


def judge(model: nn.Module) -> Validation:
    return Validation(model, *DATA, device="cpu")


def setup_of(names: Any) -> dict[str, Any]:
    return {"setup": Setup(device="cpu", names=names)}


def sent_as(prefix: str) -> ArrayRecord:
    return ArrayRecord({f"{prefix}{name}": array for name, array in model_arrays(net()).items()})


class Steps(Clients):
    """Partition p goes p + 1 hundredths along every array, whatever its name."""

    def train(self, message, partition_id):
        return reply_of(message, *honest_parts(message, (partition_id + 1) / 100))


def run(strategy, arrays, rounds=2) -> list[bytes]:
    result = strategy.start(LocalGrid(Steps(), 3), arrays, num_rounds=rounds)
    assert not any(report.failed for report in strategy.history.rounds)
    return [array.data for array in result.arrays.values()]


def rejections(strategy) -> list[str]:
    clients = strategy.history.rounds[0].clients
    return [c.rejection for c in sorted(clients, key=lambda client: client.node.node_id)]


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_give_the_same_run_to_the_bit(kind):
    plain = built(kind, net(), DATA)
    named = built(kind, net(), DATA, **setup_of(lambda name: name.removeprefix("sent.")))
    assert run(plain, model_arrays(net())) == run(named, sent_as("sent."))
    figures = [
        [(c.weight, c.weight_score, c.score) for c in report.clients]
        for strategy in (plain, named)
        for report in strategy.history.rounds
    ]
    np.testing.assert_equal(figures[:2], figures[2:])


def test_other_names_give_the_same_contributions_and_tables(tmp_path):
    tables, contributions = [], []
    for prefix in ("", "sent."):
        validation = judge(net())
        attribution = PathAttribution(validation)
        writer = RunWriter(tmp_path / f"run{prefix}", validation=validation)
        names = setup_of(lambda name, prefix=prefix: name.removeprefix(prefix))
        strategy = FedIF(validation, callbacks=[attribution, writer], **BASE | names)
        run(strategy, sent_as(prefix))
        contributions.append([(r.loss_after, r.clients) for r in attribution.rounds])
        tables.append([row["validation_loss"] for row in writer.folder.rounds.read()])
    assert contributions[0] == contributions[1]
    assert tables[0] == tables[1]


def test_statistics_and_counters_are_known_by_the_models_own_names():
    """A list has no names: a negative variance and a counter that runs away are refused as well."""
    arrays = ArrayRecord([array.numpy() for array in model_arrays(net()).values()])
    own = list(net().state_dict())
    variance, counter = (str(own.index(f"1.{n}")) for n in ("running_var", "num_batches_tracked"))

    def spoiled(change):
        def client(message, context):
            sent, metrics = honest_parts(message, 0.01)
            change(sent)
            return reply_of(message, sent, metrics)

        return client

    def negative(sent):
        sent[variance] = pack_array(-sent[variance].numpy())

    def far(sent):
        sent[counter] = pack_array(sent[counter].numpy() + 10**6)

    clients = Clients({0: spoiled(negative), 1: spoiled(far)})
    names = dict(zip(arrays, own, strict=True))
    strategy = FedIF(judge(net()), **BASE | setup_of(names))
    strategy.start(LocalGrid(clients, 6), arrays, num_rounds=1)
    refused = rejections(strategy)
    assert "has variances from -" in refused[0]
    assert "'1.num_batches_tracked' advances by 1000001; the median is 1" in refused[1]
    assert not any(refused[2:])


WITH_A_MODEL = [kind for kind in KINDS if built(kind, net(), DATA).own_shapes]


@pytest.mark.parametrize("kind", WITH_A_MODEL)
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {n: a for n, a in model_arrays(net()).items() if not n.startswith("1.")},
            r"that trains '1\.bias', '1\.weight', which initial_arrays lack: freeze what members",
        ),
        (sent_as("module."), r"without 'module\.0\.bias', .* send the arrays of model\.module"),
        (ArrayRecord([np.ones(1)]), r"without '0', .*\(names=dict\(zip\(initial_arrays, model\."),
    ],
)
def test_what_lacks_a_partner_is_named_before_anybody_is_asked(kind, arrays, words):
    strategy = built(kind, net(), DATA)
    with pytest.raises(ConfigError, match=f"{kind.__name__} was given a model {words}"):
        strategy.start(LocalGrid(alike(None), 3), ArrayRecord(dict(arrays)), num_rounds=1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_members_keep_is_frozen_and_stays_as_the_server_has_it(kind, caplog):
    model = net()
    model[1].requires_grad_(False)
    kept = {name: value.clone() for name, value in model[1].state_dict().items()}
    shared = {n: a for n, a in model_arrays(model).items() if not n.startswith("1.")}
    strategy = built(kind, model, DATA)
    with caplog.at_level(logging.WARNING, "fedif_flower"):
        run(strategy, ArrayRecord(shared))
    judges = bool(strategy.own_shapes)
    told = "initial_arrays lack 1.running_mean, 1.running_var: "
    assert (told in caplog.text) == judges
    assert strategy.model.layout.num_params == 4 * 3 + 3 + 3 * 3 + 3
    if strategy.validation is not None:
        held = strategy.validation.judge.model.state
        assert all(torch.equal(held[f"1.{name}"], value) for name, value in kept.items())


def test_a_second_name_of_tied_weights_alone_is_told_by_names():
    tied = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "head": nn.Linear(2, 3)})
    tied["head"].weight = tied["embedding"].weight

    def loss(model, batch):
        return model["head"](model["embedding"](batch)).square().mean(), len(batch)

    arrays = model_arrays(tied)
    del arrays["embedding.weight"]
    validation = Validation(tied, torch.arange(3), batch_loss=loss, device="cpu")
    told = r"trains 'embedding.weight', .*\(names=\{'head.weight': 'embedding.weight'\}"
    with pytest.raises(ConfigError, match=told):
        FedIF(validation, **BASE).start(LocalGrid(Steps(), 3), arrays, num_rounds=1)
    names = setup_of({"head.weight": "embedding.weight"})
    run(FedIF(validation, **BASE | names), arrays)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            LogisticRegression(),
            r"model is a sklearn LogisticRegression; allowed: a torch\.nn\.Module",
        ),
        (nn.Linear, r"model is the class Linear; allowed: Linear\(\.\.\.\)"),
        (None, "model is a builtins NoneType; allowed: a torch.nn.Module"),
    ],
)
def test_what_is_no_module_is_named(model, words):
    with pytest.raises(ValuationError, match=words):
        Validation(model, *DATA, device="cpu")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (net().state_dict(), "initial_arrays is of type OrderedDict; allowed: an ArrayRecord"),
        (None, "initial_arrays is of type NoneType; allowed: an ArrayRecord"),
        (ArrayRecord(), "initial_arrays has no array"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_to_begin_with_is_a_record_of_arrays(kind, arrays, words):
    with pytest.raises(ConfigError, match=words):
        built(kind, net(), DATA).start(LocalGrid(alike(None), 3), arrays, num_rounds=1)


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod", "_module"])
def test_a_wrapped_member_is_told_so_on_both_ends(wrapper):
    def client(message, context):
        arrays, metrics = honest_parts(message, 1.0)
        wrapped = {f"{wrapper}.{name}": array for name, array in arrays.items()}
        return reply_of(message, wrapped, metrics)

    strategy = FedAvg(**BASE)
    strategy.start(LocalGrid(Clients({0: client}), 3), model_arrays(net()), num_rounds=1)
    told = rejections(strategy)[0]
    assert told.startswith("arrays missing: 0.bias and 8 more; ")
    assert f"unexpected arrays: {wrapper}.0.bias and 8 more" in told
    assert f"'{wrapper}.' is what" in told
    with pytest.raises(
        ValueError, match=rf"is not the server's: {wrapper}\.0\.bias, .*'{wrapper}\.' is"
    ):
        load_arrays(net(), sent_as(f"{wrapper}."))


def partly_frozen() -> nn.Module:
    model = net()
    model[0].requires_grad_(False)
    return model


JUDGES = {
    "RunWriter": lambda judged: {"callbacks": [RunWriter("unused", validation=judged)]},
    "PathAttribution": lambda judged: {"callbacks": [PathAttribution(judged)]},
    "LossBound": lambda judged: {"stages": [LossBound(judged)]},
}


@pytest.mark.parametrize("who", JUDGES)
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            partly_frozen(),
            r"the strategy trains other parameters than the model of {}; give it setup=",
        ),
        (
            nn.ModuleDict({"net": net()}),
            r"{} was given a model without '0\.bias', .*\(names=\{{'0\.weight': 'net\.0\.weight'",
        ),
    ],
)
def test_whoever_judges_beside_the_strategy_judges_the_model_that_is_trained(
    who, model, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    judged = Validation(model, *DATA, batch_loss=of_net, device="cpu")
    strategy = FedAvg(**BASE | JUDGES[who](judged))
    with pytest.raises(ConfigError, match=words.format(who)):
        strategy.start(LocalGrid(alike(None), 3), model_arrays(net()), num_rounds=1)
    trained = {"trainable_keys": judged.parameter_names, "tied_keys": judged.tied_names}
    named = FedAvg(**BASE | JUDGES[who](judged) | {"setup": Setup(device="cpu", **trained)})
    run(named, model_arrays(model))


def of_net(model, batch):
    inputs, labels = batch
    outputs = model["net"](inputs) if isinstance(model, nn.ModuleDict) else model(inputs)
    return nn.functional.cross_entropy(outputs, labels), len(labels)


@pytest.mark.parametrize("make", [PathAttribution, FedIF, lambda v: RunWriter("x", validation=v)])
def test_a_model_in_place_of_a_validation_set_is_named_on_one_line(make):
    with pytest.raises(ConfigError, match=r"validation = '?Sequential'?; allowed: a Validation"):
        make(net())

"""Tasks, the built-in models, and what is done to any module."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.attacks import Behaviour
from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.edge_case import EdgeCase
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.attacks.pixel_trigger import PixelTrigger
from fedif_flower.attacks.semantic_backdoor import SemanticBackdoor
from fedif_flower.client.reply import poisoned_data
from fedif_flower.errors import ConfigError, DataError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import fingerprint, load_task, triggered_test
from fedif_flower.tasks.models import MODELS, Dropout, MaxPool, build_model, default_model
from fedif_flower.tasks.modules import image_format, module_mode, to_memory_format
from fedif_flower.tasks.task import Metric, Site, Task


def task(**changes) -> Task:
    functions = dict.fromkeys(("client_data", "validation_data", "test_data"), lambda site: [])
    return Task(**{"name": "t", "model": lambda: nn.Linear(1, 2), **functions, **changes})


def test_a_backdoor_whose_class_no_test_example_has_is_refused():
    tested, own = (torch.rand(2, 1), torch.tensor([0, 1])), task(num_classes=3, input_range=(0, 1))
    with pytest.raises(DataError, match="test_data has no example of what the backdoor is about"):
        triggered_test(SemanticBackdoor(1), own, tested, own.build_model(0), "cpu")


def test_a_model_that_is_made_already_is_refused_at_once():
    with pytest.raises(ConfigError, match="task 't': model is a Linear that is made already"):
        task(model=nn.Linear(1, 2))
    assert isinstance(task(model=nn.Identity).build_model(0), nn.Identity)  # A class makes one.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_data": [1, 2]}, r"client_data = \[1, 2\]; allowed: a function"),
        ({"test_data": None}, "test_data = None; allowed: a function"),
        ({"loss": "mse"}, "loss = 'mse'; allowed: a function"),
        ({"num_classes": 1}, "num_classes = 1; allowed: an integer >= 2"),
        ({"num_classes": 2.5}, "num_classes = 2.5; allowed: an integer >= 2"),
        ({"input_range": (1, 0)}, r"input_range = \(1, 0\); allowed: two numbers, the first"),
        ({"input_range": 1.0}, "input_range = 1.0; allowed: two numbers"),
        ({"metrics": Metric("a", len)}, "metrics = Metric.*; allowed: a list"),
        ({"metrics": [len]}, "metrics = <built-in .*; allowed: a Metric each"),
    ],
)
def test_what_a_task_cannot_use_is_refused_at_once(changes, words):
    with pytest.raises(ConfigError, match=f"^task 't': {words}"):
        task(**changes)


def test_a_metric_is_a_name_and_a_function():
    with pytest.raises(ConfigError, match=r"^a metric's name = 5; allowed: a text"):
        Metric(5, len)
    with pytest.raises(ConfigError, match=r"^the function of metric 'mae' = 'l1'; allowed: a func"):
        Metric("mae", "l1")


def test_the_run_s_seed_decides_what_a_task_draws_and_the_process_s_state_stays():
    drawing = task(test_data=lambda site: torch.rand(3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (drawing.load("test_data", Site(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    weights = [drawing.build_model(seed).weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_attacks_see_inputs_in_the_unit_range_and_models_what_they_take():
    scaled = task(input_range=(-1.0, 3.0), transform=lambda inputs: 10 * inputs)
    inputs = torch.tensor([-1.0, 0.0, 3.0])
    unit, to_model = scaled.in_unit_range(inputs)
    assert unit.tolist() == [0.0, 0.25, 1.0]
    assert to_model(unit).tolist() == [-10.0, 0.0, 30.0]
    pair = inputs[:, None], torch.zeros(3)
    assert scaled.transformed(pair)[0].flatten().tolist() == [-10.0, 0.0, 30.0]
    plain, unchanged = task().in_unit_range(inputs)
    assert plain is inputs
    assert unchanged(inputs) is inputs


def scaled_bytes(inputs: Tensor) -> Tensor:
    """Return bytes as parts of 255, and floats as they are, as torchvision's ToDtype does."""
    if inputs.is_floating_point():
        return inputs
    return inputs.float() / 255


def test_clients_and_server_see_the_same_integers():
    own = task(num_classes=2, input_range=(0, 255), transform=scaled_bytes)
    data = torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.tensor([0, 1, 0])
    of_client, _ = poisoned_data(own, nn.Linear(1, 2), data, Behaviour(), (0, 0), 1)
    of_server, _ = own.transformed(data)
    assert of_client.flatten().tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert torch.equal(of_client, of_server)


def test_attacks_that_change_inputs_refuse_integers():
    own = task(num_classes=2, input_range=(0, 255), transform=scaled_bytes)
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])
    needed = (
        r"needs float inputs within input_range; the inputs of task 't' are uint8 \[2, 1, 4, 4\]"
    )
    for acting in (AdversarialSamples(0.5), PixelTrigger(0.5), EdgeCase(0.5)):
        with pytest.raises(DataError, match=f"attack {type(acting).__name__} {needed}"):
            poisoned_data(own, nn.Linear(1, 2), images, acting, (0, 0), 1)
    with pytest.raises(DataError, match=f"attack PixelTrigger {needed}"):
        triggered_test(PixelTrigger(0.5), own, images, own.build_model(0), "cpu")
    # One that changes labels alone takes them.
    inputs, _ = poisoned_data(own, nn.Linear(1, 2), images, LabelNoise(0.5), (0, 0), 1)
    assert torch.equal(inputs, torch.zeros(2, 1, 4, 4))


def probabilities(labels: Tensor) -> Tensor:
    return functional.one_hot(labels, 3).float()


def test_attacks_on_labels_refuse_probabilities():
    own = task(num_classes=3, input_range=(0.0, 1.0))
    images = torch.rand(3, 1, 4, 4)
    labels = torch.tensor([0, 1, 2])
    model, ids = nn.Linear(1, 2), ((0, 0), 1)
    are = r"the targets of task 't' are float32 \[3, 3\]"
    needed = {LabelNoise: "integer labels"}
    needed |= dict.fromkeys((PixelTrigger, EdgeCase), "one integer label per example")
    for kind, words in needed.items():
        with pytest.raises(DataError, match=f"attack {kind.__name__} needs {words}; {are}"):
            poisoned_data(own, model, (images, probabilities(labels)), kind(0.5), *ids)
    with pytest.raises(DataError, match=f"attack SemanticBackdoor needs one integer .*; {are}"):
        triggered_test(SemanticBackdoor(1), own, (images, probabilities(labels)), model, "cpu")
    # A label for each pixel is as good to change, but stands for no class of the image.
    pixels = torch.zeros(3, 4, 4, dtype=torch.int64)
    _, noisy = poisoned_data(own, model, (images, pixels), LabelNoise(0.5), *ids)
    assert (noisy > 0).sum() == 24
    with pytest.raises(DataError, match=r"PixelTrigger needs one .* int64 \[3, 4, 4\]"):
        poisoned_data(own, model, (images, pixels), PixelTrigger(0.5), *ids)
    # Adversarial samples raise the cross-entropy, which probabilities have too.
    raising = AdversarialSamples(0.5)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    poisoned_data(own, flat, (images, probabilities(labels)), raising, *ids)


def test_a_run_whose_attack_changes_labels_refuses_probabilities_before_round_1():
    def data(site):
        return torch.rand(3, 4), probabilities(torch.tensor([0, 1, 2]))

    splits = dict.fromkeys(("client_data", "validation_data", "test_data"), data)
    own = task(model=lambda: nn.Linear(4, 3), num_classes=3, **splits)
    config = RunConfig.from_run_config({"task": "this-app:t", "attack": "label-noise"})
    with pytest.raises(DataError, match="attack LabelNoise needs integer labels; the targets"):
        load_task(config, own)
    load_task(config.replace(attack="sign-flip"), own)


def test_a_task_whose_data_change_has_another_fingerprint():
    inputs = torch.zeros(3, 4)

    def data(site):
        return inputs.clone(), torch.tensor([0, 1, 2])

    splits = dict.fromkeys(("client_data", "validation_data", "test_data"), data)
    own = task(model=lambda: nn.Linear(4, 3), **splits)
    config = RunConfig.from_run_config({"task": "this-app:t"})
    before = load_task(config, own).fingerprint
    assert load_task(config, own).fingerprint == before
    inputs += 1
    after = load_task(config, own).fingerprint
    assert after != before
    assert fingerprint(config, own) == after


def test_a_transform_needs_tensors():
    with pytest.raises(DataError, match="task 't': transform takes tensors of inputs; the data"):
        task(transform=torch.neg).transformed([1, 2])


def test_names_of_metrics_make_columns():
    assert Metric("Mean absolute-error", max).key == "mean_absolute_error"
    for name in ("", "a,b", "accuracy", "Score"):
        with pytest.raises(ConfigError, match="allowed: letters, digits and spaces"):
            Metric(name, max)


def test_no_metric_has_a_column_that_rounds_have_already(tmp_path):
    prefixes = ("test_", "validation_")
    columns = [name for name in RunFolder(tmp_path).rounds.columns if name.startswith(prefixes)]
    assert len(columns) == 5
    for column in columns:
        with pytest.raises(ConfigError, match=r"and none of .*contradicted"):
            Metric(column.partition("_")[2], max)


def test_attacks_say_what_they_need():
    plain, full = task(), task(num_classes=3, input_range=(0.0, 1.0))
    assert LabelNoise(0.5).misfit(plain) == "class labels (num_classes)"
    assert "input_range" in AdversarialSamples(0.5).misfit(task(num_classes=3))
    for acting in (Behaviour(), GradientNoise(0.1)):
        assert acting.misfit(plain) == ""
        assert not acting.needs_tensors
    for acting in (LabelNoise(0.5), AdversarialSamples(0.5)):
        assert acting.misfit(full) == ""
        assert acting.needs_tensors


def test_an_attack_on_labels_needs_them_as_tensors_and_one_on_data_takes_any():
    class Backwards(Behaviour):
        def poison_data(self, data, generator):
            return data[::-1]

    ids = (0, 0), 1
    model = nn.Linear(1, 2)
    assert poisoned_data(task(), model, [1, 2], Backwards(), *ids) == [2, 1]
    with pytest.raises(DataError, match=r"LabelNoise changes tensors .* of task 't' are list"):
        poisoned_data(task(num_classes=2), model, [1, 2], LabelNoise(0.5), *ids)


class NoLabels(Behaviour):
    def poison_labels(self, labels, num_classes, generator):
        labels.zero_()


class OneLabel(Behaviour):
    def poison_labels(self, labels, num_classes, generator):
        return labels[0]


class FewInputs(Behaviour):
    def poison_inputs(self, model, pixels, labels, normalize, generator):
        return pixels[1:]


class InputsAlone(Behaviour):
    def poison_examples(self, pixels, labels, num_classes, generator):
        return pixels


@pytest.mark.parametrize(
    ("acting", "words"),
    [
        (NoLabels(), "poison_labels must return a tensor of 3 examples, not NoneType"),
        (OneLabel(), r"poison_labels must return a tensor of 3 examples, not int64 \[\]"),
        (FewInputs(), r"poison_inputs must return a tensor of 3 examples, not float32 \[2, 1\]"),
        (InputsAlone(), r"poison_examples must return inputs and labels .* float32 \[3, 1\]"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Behaviour) else "",
)
def test_a_hook_that_returns_no_such_examples_is_named(acting, words):
    own = task(num_classes=2, input_range=(0.0, 1.0))
    data = torch.rand(3, 1), torch.tensor([0, 1, 0])
    with pytest.raises(ConfigError, match=f"attack {type(acting).__name__}: {words}"):
        poisoned_data(own, nn.Linear(1, 2), data, acting, (0, 0), 1)


# -- models


CIFAR10 = (3, 32, 32)
FASHION_MNIST = (1, 28, 28)
DIGITS = (1, 8, 8)


@pytest.mark.parametrize(
    ("name", "image_shape", "expected"),
    [
        ("cnn", CIFAR10, 1_059_306),
        ("cnn-batch-norm", FASHION_MNIST, 29_034),
        ("lenet5", FASHION_MNIST, 61_706),
        ("lenet5", CIFAR10, 62_006),
        ("resnet18", CIFAR10, 11_173_962),
        ("mlp", DIGITS, 64 * 64 + 64 + 64 * 10 + 10),
    ],
)
def test_models_have_the_published_number_of_parameters(name, image_shape, expected):
    model = build_model(name, image_shape, 10, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("image_shape", [DIGITS, FASHION_MNIST, (2, 12, 65)])
def test_a_model_that_fits_maps_images_to_logits_and_gradients(name, image_shape):
    if not MODELS[name].fits(*image_shape[1:]):
        with pytest.raises(ConfigError, match=f"model = '{name}' does not fit .* allowed: .*mlp"):
            build_model(name, image_shape, 7, seed=0)
        return
    model = build_model(name, image_shape, 7, seed=0)
    logits = model(torch.rand(2, *image_shape))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("name", "shape"), [("cnn", CIFAR10), ("cnn-batch-norm", FASHION_MNIST)])
def test_pooling_before_relu_is_the_textbook_cnn(name, shape):
    model = build_model(name, shape, 10, seed=3).eval()
    images = torch.rand(4, *shape) - 0.5
    features = images
    for module in model:
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            features = module(features)
        elif isinstance(module, nn.MaxPool2d):  # The next one is the ReLU.
            features = functional.max_pool2d(functional.relu(features), 2)
        elif isinstance(module, nn.Flatten):
            break
    head = model[list(model).index(module) :]
    torch.testing.assert_close(model(images), head(features))


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_random_state():
    def weights(seed: int) -> list[float]:
        return build_model("mlp", DIGITS, 10, seed=seed)[1].weight.flatten().tolist()

    before = torch.get_rng_state()
    first, other = weights(1), weights(2)
    assert first != other
    with ThreadPoolExecutor(4) as pool:  # Side by side they are those built alone.
        assert list(pool.map(weights, [1, 2] * 8)) == [first, other] * 8
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("vgg", 10, r"model = 'vgg'; allowed: cnn, .*, mlp"),
        ("mlp", 1, "1 class; allowed: 2 classes or more"),
    ],
)
def test_what_cannot_be_built_is_named(name, classes, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, DIGITS, classes, seed=0)


@pytest.mark.parametrize(
    ("image_shape", "expected"),
    [(DIGITS, "mlp"), (CIFAR10, "cnn"), ((3, 64, 48), "lenet5"), ((3, 9, 40), "mlp")],
)
def test_default_model_fits_the_images(image_shape, expected):
    assert default_model(image_shape) == expected
    assert MODELS[expected].fits(*image_shape[1:])


def test_dropout_keeps_the_share_and_the_mean_and_is_off_in_eval_mode():
    dropout, inputs = Dropout(0.2), torch.ones(100_000)
    outputs = dropout(inputs)
    assert set(outputs.tolist()) == {0.0, 1.25}
    # Standard error of the share: sqrt(0.2 * 0.8 / 100,000) = 0.0013.
    assert float((outputs == 0).float().mean()) == pytest.approx(0.2, abs=0.007)
    assert dropout(inputs.bfloat16()).dtype == torch.bfloat16
    assert dropout.eval()(inputs) is inputs


def test_the_pooling_of_an_evaluation_is_torch_s_to_the_last_bit():
    image = torch.tensor([[[[1.0, -2.0, 0.5, 0.5], [3.0, 4.0, -1.0, 0.0]]]])  # [1, 1, 2, 4]
    assert MaxPool()(image).tolist() == [[[[4.0, 0.5]]]]
    images = torch.randn(4, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    images[0, 0, 1, 1] = torch.nan  # A model that has diverged is seen to.
    for kept in (images, images.to(memory_format=torch.channels_last), images[..., 1:, :7]):
        pooled = MaxPool()(kept)
        expected = nn.functional.max_pool2d(kept, 2)
        torch.testing.assert_close(pooled, expected, rtol=0, atol=0, equal_nan=True)
        assert pooled.stride() == expected.stride()


def test_the_gradient_of_equal_values_goes_to_the_first_as_torch_s_does():
    image = torch.zeros(1, 1, 2, 2, requires_grad=True)
    MaxPool()(image).sum().backward()
    assert image.grad.tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


class Viewing(nn.Conv2d):
    """As in Flower's quickstart: ``view`` on the maps of a convolution."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).view(-1, 12)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_get_channels_last_where_the_model_works_with_them(channels):
    images = torch.rand(2, channels, 4, 5)
    flattening = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.Linear(12, 2))
    assert image_format(flattening, images) is torch.channels_last
    laid_out = to_memory_format(images, torch.channels_last)
    assert torch.equal(laid_out, images)
    assert laid_out.stride() == (20 * channels, 1, 5 * channels, channels)
    assert to_memory_format(laid_out, torch.channels_last) is laid_out  # nothing is copied twice
    assert to_memory_format(laid_out, torch.contiguous_format).is_contiguous()


def test_models_that_view_their_maps_or_have_none_and_other_examples_stay_contiguous():
    rows, images = torch.rand(3, 4), torch.rand(2, 3, 4, 5)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(60, 2))
    for model, examples in ((Viewing(3, 2, 3), images), (nn.Linear(4, 1), rows), (flat, images)):
        assert image_format(model, examples) is torch.contiguous_format
    assert to_memory_format(rows, torch.channels_last) is rows


def test_modes_return_to_what_each_had_also_after_an_error():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    with suppress(RuntimeError), module_mode(model, training=False):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False]

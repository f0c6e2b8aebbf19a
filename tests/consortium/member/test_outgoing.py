"""What leaves is what the policy says, whatever a reply holds."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy, rounded
from fedif_flower.errors import ConfigError, RefusedByMemberError
from fedif_flower.messages.arrays import pack_array, view_array
from tests.test_docs_names import DOCS

MODEL = {
    "weight": np.array([[1.0, 2.0]], np.float32),
    "bias": np.array(0.5, np.float32),
    "norm.running_mean": np.array([3.0], np.float32),
    "norm.num_batches_tracked": np.array(7),
    "mask": np.array([0.0, -np.inf], np.float32),
}


def arrays(**changes) -> ArrayRecord:
    values = MODEL | {name.replace("__", "."): value for name, value in changes.items()}
    return ArrayRecord({name: pack_array(np.asarray(value)) for name, value in values.items()})


def content(**records) -> RecordDict:
    return RecordDict({name.replace("_", "-"): record for name, record in records.items()})


RECEIVED = content(arrays=arrays(), config=ConfigRecord({"server-round": 1}))


def check(reply: RecordDict, received: RecordDict = RECEIVED, kind="train", **keys) -> RecordDict:
    """Return what leaves; there is no noise, and so no log."""
    return OutgoingPolicy(LeavesSettings(**keys), None).limit_reply(received, reply, 0, kind)


def refusal(reply: RecordDict, **keys) -> RefusedByMemberError:
    with pytest.raises(RefusedByMemberError) as caught:
        check(reply, **keys)
    return caught.value


def left(reply: RecordDict, **keys) -> dict[str, np.ndarray]:
    record = check(reply, **keys).array_records["arrays"]
    return {name: view_array(array) for name, array in record.items()}


def f32(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


# Arrays.


NEITHER = "an array is neither the model's nor on the list"
OTHER = "an array is of another type or shape than the model's"
CHANGED = "an array that is no parameter has changed"
ALONE = ArrayRecord({"weight": pack_array(f32(1, 1))})
NONE = Array("float32", (1, 2), "numpy.ndarray", b"patients")


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        pytest.param({"arrays": returned}, reason, id=name)
        for name, returned, reason in [
            ("data", arrays(patients=np.zeros((3, 28, 28), np.float32)), NEITHER),
            ("as a parameter", arrays(weight=np.zeros((100, 784), np.float32)), OTHER),
            ("29 bits for each parameter", arrays(weight=np.array([[1.0, 2.0]])), OTHER),
            ("an integer", arrays(norm__num_batches_tracked=np.array(8)), CHANGED),
            ("a statistic", arrays(norm__running_mean=f32(3.5)[0]), CHANGED),
            ("a constant", arrays(mask=f32(1.0, -np.inf)[0]), CHANGED),
            ("NaN", arrays(weight=f32(math.nan, 1)), "the update is not finite"),
            ("Inf", arrays(weight=f32(math.inf, 1)), "the update is not finite"),
            ("one of five", ALONE, "an array of the model is missing"),
            ("none", ArrayRecord({**arrays(), "weight": NONE}), "an array cannot be read"),
        ]
    ]
    + [
        pytest.param({"arrays": arrays(), "more": ALONE}, NEITHER, id="a record of its own"),
        pytest.param({"arrays": arrays(secret=np.zeros(1))}, NEITHER, id="an app's name"),
    ],
)
def test_what_is_no_update_of_the_model_that_came_is_refused(records, reason):
    refused = refusal(content(**records))
    assert refused.reason == reason
    assert ("secret" in str(refused)) == ("secret" in records["arrays"])


def test_a_listed_array_leaves_as_a_row_of_its_type():
    listed = {"arrays": ["arrays.masked uint64"]}
    masked = ArrayRecord({"masked": pack_array(np.arange(3, dtype=np.uint64))})
    assert left(content(arrays=masked), **listed)["masked"].tolist() == [0, 1, 2]
    for other in (np.arange(3), np.zeros((3, 1), np.uint64), np.uint64(3)):
        reply = content(arrays=ArrayRecord({"masked": pack_array(np.asarray(other))}))
        assert refusal(reply, **listed).reason == "an array is not as the list has it"


def test_buffers_may_change_where_the_policy_says_so():
    changed = {"norm__running_mean": f32(3.5)[0], "norm__num_batches_tracked": np.array(8)}
    found = left(content(arrays=arrays(**changed)), buffers=True)
    assert (found["norm.running_mean"].item(), found["norm.num_batches_tracked"].item()) == (3.5, 8)
    broken = content(arrays=arrays(norm__running_mean=f32(math.nan)[0]))
    assert refusal(broken, buffers=True).reason == "an array is not finite"


WIDE = np.finfo(np.longdouble)


@pytest.mark.skipif(WIDE.bits <= 64, reason="this processor has no wider numbers")
def test_numbers_of_more_than_64_bits_do_not_change():
    """A change of 1e15 is none in 64 bits, so no bound would hold."""
    wide = np.full(2, 1e32, np.longdouble)
    received = content(arrays=ArrayRecord({"weight": pack_array(wide)}))
    assert check(received, received, clip_length=1.0) == received
    moved = content(arrays=ArrayRecord({"weight": pack_array(wide + np.longdouble(1e15))}))
    with pytest.raises(RefusedByMemberError, match=CHANGED):
        check(moved, received, clip_length=1.0)


@pytest.mark.skipif(WIDE.nmant != 63, reason="this processor's wide numbers have no padding")
def test_nothing_leaves_in_the_padding_of_numbers():
    wide = np.ones(2, np.longdouble)
    padded = bytearray(wide.tobytes())
    padded[-1] = 7
    hidden = np.frombuffer(bytes(padded), np.longdouble)
    assert (hidden == wide).all()
    received = content(arrays=ArrayRecord({"weight": pack_array(wide)}))
    with pytest.raises(RefusedByMemberError, match=CHANGED):
        check(content(arrays=ArrayRecord({"weight": pack_array(hidden)})), received)


def test_nothing_leaves_by_an_order_a_header_or_a_record_without_content():
    packed = arrays()
    plain = packed["weight"].data
    # 64 bytes of text in the header's padding, which NumPy reads as the same array.
    end = plain.index(b"\n")
    padded = plain[:8] + (end - 9 + 64).to_bytes(2, "little") + plain[10:end] + b" " * 64
    padded += plain[end:]
    hidden = Array("a secret", (4, 7, 1, 1), "numpy.ndarray", padded)
    reply = RecordDict(
        {
            "a secret": MetricRecord(),
            "arrays": ArrayRecord({**dict(reversed(packed.items())), "weight": hidden}),
        }
    )
    found = check(reply)
    assert set(found) == {"arrays"}
    assert list(found["arrays"]) == list(MODEL)
    assert found["arrays"]["weight"].data == plain
    assert found["arrays"]["weight"].dtype == "float32"


# Lengths.


def test_a_long_update_is_shortened():
    reply = content(arrays=arrays(weight=f32(4.0, 2.0), bias=np.array(4.5, np.float32)))
    # The update is (3, 0) and 4: of length 5.
    assert left(reply, clip_length=5.1)["weight"].tolist() == [[4.0, 2.0]]
    shortened = left(reply, clip_length=2.5)
    assert shortened["weight"].tolist() == [[2.5, 2.0]]
    assert shortened["bias"].tolist() == 2.5


@pytest.mark.parametrize(
    ("dtype", "weight", "change", "clip_length", "kept"),
    [
        # The step above 1 is 2^-10 in float16: three quarters of it would be rounded to it.
        (np.float16, 1.0, 2.0**-10, 1.5 * 2.0**-10, 0.0),
        # Steps of 1/16 at 10^6 in float32: 10 in each of four is of length 20; 0.5 is 8 steps.
        (np.float32, 1e6, 10.0, 1.0, 0.5),
        # 0.55 is between 8 and 9 steps, and nearer to the ninth.
        (np.float32, 1e6, 10.0, 1.1, 0.5),
        (np.float32, 1e6, -10.0, 1.1, -0.5),
        # Steps of 2 at 10^16 in float64: 2.75 is nearer to 2, 3.25 to 4.
        (np.float64, 1e16, 20.0, 5.5, 2.0),
        (np.float64, 1e16, 20.0, 6.5, 2.0),
    ],
)
def test_rounding_makes_no_update_longer_than_it_may_be(dtype, weight, change, clip_length, kept):
    sent = np.full(4, weight, dtype)
    returned = (sent + dtype(change)).astype(dtype)
    received, reply = (
        content(arrays=ArrayRecord({"weight": pack_array(array)})) for array in (sent, returned)
    )
    leaving = check(reply, received, clip_length=clip_length).array_records["arrays"]["weight"]
    update = view_array(leaving).astype(np.float64) - sent.astype(np.float64)
    assert update.tolist() == [kept] * 4
    assert np.linalg.norm(update) <= clip_length


def test_the_vector_of_a_local_method_leaves_where_it_is_listed_and_no_length_is_bounded():
    received, reply = (
        content(arrays=arrays(), local_method=ArrayRecord({"local-method": pack_array(f32(v)[0])}))
        for v in (1.0, -2.0)
    )
    with pytest.raises(RefusedByMemberError, match="neither the model's nor on the list"):
        check(reply, received)  # though the server sent an array of that name and shape
    listed = {"arrays": ["local-method.local-method float32"]}
    left = check(reply, received, **listed).array_records
    assert view_array(left["local-method"]["local-method"]).tolist() == [-2.0]
    with pytest.raises(RefusedByMemberError, match="local-method"):
        check(reply, received, **listed, clip_length=1000.0)


# Metrics and texts.


def metrics_left(values: dict, **keys) -> dict:
    keys = {"metrics": [f"metrics.{name}" for name in values]} | keys
    return dict(check(content(metrics=MetricRecord(values)), **keys)["metrics"])


def test_metrics_are_rounded_to_significant_digits():
    values = {"loss": 0.123456, "seconds": 98765.4, "none": 0.0, "num": 123456, "sum": 123456.0}
    found = metrics_left(values | {"large": 12345678}, metric_digits=3)
    rounded_away = {"loss": 0.123, "none": 0, "seconds": 98800, "large": 12300000}
    assert found == values | rounded_away
    assert [type(found[name]) for name in ("num", "large", "sum")] == [int, int, float]
    assert math.copysign(1, metrics_left({"loss": -0.0})["loss"]) == 1


@pytest.mark.parametrize(
    ("value", "keys", "reason"),
    [
        (1.0, {"metrics": ["metrics.los", "other.loss"]}, "a metric is not on the list"),
        (math.nan, {}, "a number is not finite"),
        (1.79e308, {"metric_digits": 2}, "a number is not finite"),
        (2**63 - 1, {"metric_digits": 5}, "a number is not finite"),
        ([1.0, 2.0], {}, "a metric is no single number"),
    ],
)
def test_other_metrics_are_refused(value, keys, reason):
    keys = {"metrics": ["metrics.loss"], **keys}
    assert refusal(content(metrics=MetricRecord({"loss": value})), **keys).reason == reason


def test_what_is_listed_once_leaves_once():
    once = {"fitres": MetricRecord({"metrics.loss": 1.0})}
    twice = {**once, "fitres.metrics": MetricRecord({"loss": 2.0})}
    listed = {"metrics": ["fitres.metrics.loss"]}
    assert check(RecordDict(once), **listed) == RecordDict(once)
    assert refusal(RecordDict(twice), **listed).reason == "two values have one name"


def test_bytes_hidden_in_metrics_are_gone():
    secret = b"patient 4711 has"
    # Six bytes in the mantissa's low bits: the metric differs by less than a millionth.
    high = struct.pack("<d", 0.7)[2:]
    carried = {f"a{i}": struct.unpack("<d", secret[i : i + 2] + high)[0] for i in range(0, 16, 2)}
    assert list(carried.values()) == pytest.approx([0.7] * 8, abs=1e-6)
    low = b"".join(struct.pack("<d", value)[:2] for value in carried.values())
    assert low == secret  # What a server that knows the trick reads.
    assert set(metrics_left(carried, metric_digits=4).values()) == {0.7}


def test_values_leave_in_answers_to_queries_alone():
    answer = content(node=ConfigRecord({"partition-id": 3, "attack": "label-noise"}))
    for kind in ("query", "query.statement"):
        assert check(answer, kind=kind) == answer
    for kind in ("train", "train.query", "evaluate"):
        with pytest.raises(RefusedByMemberError, match="leaves in the answer to a query"):
            check(answer, kind=kind)


def test_a_number_leaves_beside_an_update_where_the_list_says_so_and_rounded():
    """14 bytes of a member's data would else go with each update, in two numbers of the list."""
    hidden = content(node=ConfigRecord({"partition-id": 1234567}))
    with pytest.raises(RefusedByMemberError, match="leaves in the answer to a query alone"):
        check(hidden)
    listed = {"config": ["mask.length number[9] with-updates", "mask.count number with-updates"]}
    sent = content(mask=ConfigRecord({"length": 1.23456789012345, "count": 0.123456789}))
    found = check(sent, **listed)["mask"]
    assert dict(found) == {"length": 1.23456789, "count": 0.1235}
    answer = content(preflight=ConfigRecord({"time": 1_796_000_000.123456}))
    assert check(answer, kind="query")["preflight"]["time"] == 1_796_000_000


@pytest.mark.parametrize("digits", ["0", "16", "17", "99"])
def test_a_number_has_at_least_a_digit_and_is_never_whole(digits):
    """Seventeen digits are a number as the app wrote it; none is no number."""
    with pytest.raises(ConfigError, match="config"):
        LeavesSettings(config=[f"a.x number[{digits}]"])
    sent = content(a=ConfigRecord({"x": 0.1234567890123456}))
    [left] = check(sent, kind="query", config=["a.x number[15]"])["a"].values()
    assert left == 0.123456789012346


def test_zero_has_no_sign_that_says_something():
    sent = content(a=ConfigRecord({"x": -0.0}))
    [left] = check(sent, kind="query", config=["a.x number"])["a"].values()
    assert str(left) == "0.0"


def test_with_noise_nothing_leaves_beside_an_update_without_it():
    noisy = {"noise_multiplier": 1.0, "clip_length": 1.0}
    assert LeavesSettings(**noisy)
    with pytest.raises(ConfigError, match="allowed: nothing with-updates where there is noise"):
        LeavesSettings(**noisy, config=["mask.length number with-updates"])


OF_ANOTHER_KIND = "of another kind than the list says"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("node.attack", "\u00e4" * 21, "too long"),
        ("node.attack", b"bytes", OF_ANOTHER_KIND),
        ("node.attack", ["a", "b"], OF_ANOTHER_KIND),
        ("node.partition-id", "3", OF_ANOTHER_KIND),
        ("node.partition-id", [1] * 26, OF_ANOTHER_KIND),
        ("node.patients", "x", "not on the list"),
        ("signature.signature", b"an app's own", "not on the list"),
    ],
)
def test_other_values_are_refused(path, value, reason):
    record, name = path.split(".")
    with pytest.raises(RefusedByMemberError, match=reason):
        check(RecordDict({record: ConfigRecord({name: value})}), kind="query")


# Whatever the reply holds.

NAMES = st.sampled_from(["arrays", "metrics", "node", "weight", "num-examples", "loss", "secret"])
VALUES = st.sampled_from(
    [*MODEL.values(), f32(1, 1), np.zeros(3), np.array(5), np.array([["x"]]), np.array([1 + 2j])]
)
FORGED = st.binary(max_size=20) | st.binary(max_size=90).map(lambda b: b"\x93NUMPY\x01\x00" + b)
ARRAYS = st.one_of(
    st.dictionaries(st.sampled_from([*MODEL, "secret"]), VALUES.map(pack_array), max_size=6),
    st.dictionaries(
        st.sampled_from([*MODEL]),
        FORGED.map(lambda data: Array("float32", (1,), "numpy.ndarray", data)),
        max_size=2,
    ),
    st.just(dict(arrays(weight=f32(1, 1)))),
).map(ArrayRecord)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.floats())
METRICS = st.dictionaries(NAMES, NUMBERS, max_size=3).map(MetricRecord)
OTHERS = st.text() | st.binary() | st.integers(0, 9) | st.booleans()
CONFIGS = st.dictionaries(NAMES, OTHERS, max_size=3).map(ConfigRecord)


@given(records=st.dictionaries(NAMES, ARRAYS | METRICS | CONFIGS, max_size=4))
def test_what_leaves_is_what_the_policy_says(records):
    listed = {"metrics": ["metrics.num-examples", "metrics.loss"], "config": ["node.weight number"]}
    try:
        found = check(RecordDict(records), **listed, clip_length=1.0)
    except RefusedByMemberError:
        return
    assert set(found) <= {"arrays", "metrics", "node"}
    assert all(found.values())
    if "arrays" in found:
        assert list(found["arrays"]) == list(MODEL)
        values = {key: view_array(array) for key, array in found["arrays"].items()}
        update = [values.pop(key) - MODEL[key] for key in ("weight", "bias")]
        assert math.sqrt(sum(float((u**2).sum()) for u in update)) <= 1 + 1e-6
        assert all(value.tobytes() == MODEL[key].tobytes() for key, value in values.items())
    for name, value in found.get("metrics", {}).items():
        assert name in ("num-examples", "loss")
        assert rounded(value, 4) == value or value == int(value) in range(-(10**7), 10**7)
    assert set(found.get("node", {})) <= {"weight"}


def test_the_page_says_how_many_bits_a_metric_may_have():
    """Integers and floats leave as what they are, so that each of them counts."""
    words = " ".join((DOCS / "member-policy.md").read_text().split())
    whole = 2 * (10**7 - 1) + 1
    large = {m * 10**e for m in range(1000, 10_000) for e in range(4, 16)}
    integers = whole + 2 * sum(10**7 <= n < 2**63 for n in large)
    # Each four digits at each power of ten; at the ends of the range, and where some are whole,
    # they are tried.
    tried = [*range(-327, -300), *range(-7, 8), *range(300, 306)]
    values = {float(f"{m}e{e}") for m in range(1000, 10_000) for e in tried}
    assert all(rounded(value, 4) == value for value in list(values)[::100] if math.isfinite(value))
    fine = sum(0 < v < math.inf and not (v.is_integer() and v < 10**7) for v in values)
    floats = whole + 2 * (fine + 9000 * (len(range(-327, 306)) - len(tried)))
    bits = math.log2(integers + floats)
    assert f"That is less than {math.ceil(bits)} bits with 4 digits" in words
    assert bits == pytest.approx(25.62, abs=0.01)

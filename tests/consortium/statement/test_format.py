"""A statement is what others read: their verifiers, openssl, the published schema."""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError

from fedif_consortium.evidence.keys import key_id
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import ENVELOPE, SignedStatement, file_hash
from fedif_consortium.statement.verify import sign_statement
from tests.consortium.statement.runs import make_run

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA = json.loads(
    (
        importlib.resources.files("fedif_consortium.statement") / "statement-v1.schema.json"
    ).read_text()
)
MEMBERS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": Ed25519PrivateKey.generate(),
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, key) -> Path:
    """A run with a statement that the operator and four members signed."""
    rounds = [{0: 0.5, 1: 0.25}] * 5
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "run", rounds, names={1: "hospital-2"})
    make_statement(run_dir, key, budget_cents=1000_00, contact="Ada Holm \N{EN DASH} room 7")
    for member in MEMBERS.values():
        sign_statement(run_dir, member)
    return run_dir


def all_keys(key) -> list:
    return [one.public_key() for one in (key, *MEMBERS.values())]


def as_pem(public) -> bytes:
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it takes openssl")
def test_the_page_s_shell_verifies_it_with_openssl(run_dir, key, tmp_path):
    (script,) = re.findall(
        r"^```sh\n(.*?)^```", (DOCS / "statement-format.md").read_text(), flags=re.DOTALL | re.M
    )
    assert len(script.splitlines()) <= 15
    shutil.copy(run_dir / "statement" / ENVELOPE, tmp_path)
    pems = []
    for number, public in enumerate([*all_keys(key), Ed25519PrivateKey.generate().public_key()]):
        pems.append(f"{number}.pem")
        (tmp_path / pems[-1]).write_bytes(as_pem(public))

    def verified(*pems: str) -> bool:
        command = ["sh", "-c", script, "sh", *pems]
        return (
            subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
        )

    assert verified(*pems[:5])
    payload = json.loads((tmp_path / "payload.json").read_bytes())
    assert payload["subject"][0]["digest"]["sha256"] == file_hash(run_dir / "model.pt")
    assert not verified(pems[5])
    path = tmp_path / ENVELOPE
    content = path.read_text()
    at = content.index('"payload": "') + 40
    path.write_text(content[:at] + ("B" if content[at] == "A" else "A") + content[at + 1 :])
    assert not any(verified(pem) for pem in pems)


def test_what_the_page_s_python_verifies(run_dir, key, tmp_path):
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "statement-format.md").read_text(), flags=re.DOTALL | re.M
    )
    names: dict = {}
    exec(compile(code, "statement-format.md", "exec"), names)
    pem, manifest = tmp_path / "key.pem", run_dir / "statement" / ENVELOPE
    for public in all_keys(key):
        pem.write_bytes(as_pem(public))
        payload = names["verify"](manifest, pem, key_id(public))
        assert json.loads(payload)["predicate"]["run"] == "run"
    pem.write_bytes(as_pem(Ed25519PrivateKey.generate().public_key()))
    with pytest.raises(VerificationError):
        names["verify"](manifest, pem, key_id(public))


CHANGES = [
    ((), None),
    (("_type",), "https://in-toto.io/Statement/v2"),
    (("subject",), []),
    (("subject", 0, "digest"), {"sha1": "a" * 40}),
    (("subject", 0, "uri"), "file:///model.pt"),
    (("subject", 0, "name"), "model\x1b.pt"),
    (("predicate", "made"), "2026-11-02 09:30:00+00:00"),
    (("predicate", "code"), "A" * 64),
    (("predicate", "files", "more.csv"), "0" * 64),
    (("predicate", "member"), "hospital-2"),
]


@pytest.mark.parametrize(("where", "value"), CHANGES)
def test_the_schema_allows_what_is_read_and_nothing_else(run_dir, where, value):
    envelope = json.loads((run_dir / "statement" / ENVELOPE).read_bytes())
    payload = json.loads(Envelope.from_dict(envelope).payload)
    place = payload
    for part in where[:-1]:
        place = place[part]
    if where:
        place[where[-1]] = value
    allowed = where in ((), ("predicate", "files", "more.csv"))
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(payload) == allowed
    try:
        SignedStatement.model_validate_json(json.dumps(payload))
    except ValidationError:
        assert not allowed
    else:
        assert allowed

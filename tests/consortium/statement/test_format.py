"""A statement is what others read: their verifiers, openssl, the published schema."""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError

from fedif_consortium.evidence import dsse
from fedif_consortium.evidence.keys import key_id
from fedif_consortium.federation.records import public_line
from fedif_consortium.statement.countersign import sign_statement
from fedif_consortium.statement.manifest import (
    ENVELOPE,
    PAYLOAD_TYPE,
    SignedStatement,
    file_hash,
)
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError

PAGE = (Path(__file__).parents[3] / "docs" / "statement-format.md").read_text()
SCRIPTS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.DOTALL | re.M)
ROOM = importlib.resources.files("fedif_consortium.statement")
MEMBERS = [
    *map(ec.generate_private_key, (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())),
    Ed25519PrivateKey.generate(),
]
STRANGER = Ed25519PrivateKey.generate()


@pytest.fixture
def countersigned(copy) -> Path:
    """A manifest that the operator and four members signed."""
    for member in MEMBERS:
        sign_statement(copy, member)
    return copy / "statement" / ENVELOPE


def as_pem(key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it takes openssl")
def test_the_page_s_shell_verifies_it_with_openssl(countersigned, key):
    script, _ = SCRIPTS
    folder = countersigned.parent
    pems = [f"{number}.pem" for number in range(6)]
    for pem, signer in zip(pems, [key, *MEMBERS, STRANGER], strict=True):
        (folder / pem).write_bytes(as_pem(signer))

    def verified(*pems: str) -> bool:
        command = ["sh", "-c", script, "sh", *pems]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        return done.returncode == 0

    assert verified(*pems[:5])
    payload = json.loads((folder / "payload.json").read_bytes())
    assert payload["subject"][0]["digest"]["sha256"] == file_hash(folder.parent / "model.pt")
    assert not verified(pems[5])
    content = countersigned.read_text()
    at = content.index('"payload": "') + 40
    changed = "B" if content[at] == "A" else "A"
    countersigned.write_text(content[:at] + changed + content[at + 1 :])
    assert not any(verified(pem) for pem in pems)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it takes openssl")
def test_the_page_s_shell_makes_pem_of_an_ed25519_key_of_openssh(tmp_path):
    _, script = SCRIPTS
    (tmp_path / "hospital-a.pub").write_text(public_line(STRANGER, "hospital-a"))
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    assert (tmp_path / "hospital-a.pem").read_bytes() == as_pem(STRANGER)


def test_what_the_page_s_python_verifies(countersigned, key, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.M)
    names: dict = {}
    exec(compile(code, "statement-format.md", "exec"), names)
    pem = tmp_path / "key.pem"
    for signer in (key, *MEMBERS):
        pem.write_bytes(as_pem(signer))
        payload = names["verify"](countersigned, pem, key_id(signer.public_key()))
        assert json.loads(payload)["predicate"]["run"] == "run"
    pem.write_bytes(as_pem(STRANGER))
    with pytest.raises(VerificationError):
        names["verify"](countersigned, pem, key_id(STRANGER.public_key()))


AGREED = {"name": "october", "attempt": 1, "config": "0" * 64}
CHANGES = [
    ((), None),
    (("predicate", "agreed"), AGREED),
    (("predicate", "agreed"), {**AGREED, "attempt": 0}),
    (("predicate", "agreed"), {"name": "october"}),
    (("predicate", "attempts"), [{"run": "october", "config": "0" * 64}]),
    (("predicate", "attempts"), [{"run": "0f" * 16, "config": "0" * 64, "kept": True}]),
    (("predicateType",), "urn:fedif-flower:contributions:v1"),
    (("_type",), "https://in-toto.io/Statement/v2"),
    (("subject",), []),
    (("subject", 0, "digest"), {"sha1": "a" * 40}),
    (("subject", 0, "uri"), "file:///model.pt"),
    (("subject", 0, "name"), "model\x1b.pt"),
    (("subject", 0, "name"), "updates/model.pt"),
    (("predicate", "files", "model.pt"), "0" * 64),
    (("predicate", "made"), "2026-11-02 09:30:00+00:00"),
    (("predicate", "made"), "\N{ARABIC-INDIC DIGIT TWO}026-11-02T09:30:00Z"),
    (("predicate", "run"), "october\u202efdp"),
    (("predicate", "contact"), 301 * "a"),
    (("predicate", "code"), "A" * 64),
    (("predicate", "code"), "0" * 64 + "\n"),
    (("predicate", "settings"), "\n"),
    (("predicate", "made"), "2026-11-02T09:30:00Z\n"),
    (("predicate", "contact"), "Ada Holm\n"),
    (("predicate", "attempts"), [{"run": "0f" * 16 + "\n", "config": "0" * 64}]),
    (("predicate", "files", "more.csv\n"), "0" * 64),
    (("predicate", "files", "more.csv"), "0" * 64),
    (("predicate", "member"), "hospital-2"),
]


@pytest.mark.parametrize(("where", "value"), CHANGES)
def test_the_schema_allows_what_is_read_and_nothing_else(stated, where, value):
    schema = json.loads((ROOM / "statement-v2.schema.json").read_text())
    envelope = json.loads((stated / "statement" / ENVELOPE).read_bytes())
    place = payload = json.loads(Envelope.from_dict(envelope).payload)
    for part in where[:-1]:
        place = place[part]
    if where:
        place[where[-1]] = value
    allowed = where in ((), ("predicate", "files", "more.csv")) or value is AGREED
    assert jsonschema.Draft202012Validator(schema).is_valid(payload) == allowed
    with nullcontext() if allowed else pytest.raises(ValidationError):
        SignedStatement.model_validate_json(json.dumps(payload))


def test_a_statement_of_another_version_is_refused_by_its_version(stated, tmp_path, key):
    """As the code before this version made it, byte by byte: without what was agreed to."""
    folder = shutil.copytree(stated / "statement", tmp_path / "statement")
    envelope = json.loads((folder / ENVELOPE).read_bytes())
    payload = json.loads(Envelope.from_dict(envelope).payload)
    payload["predicateType"] = "urn:fedif-flower:contributions:v1"
    del payload["predicate"]["agreed"], payload["predicate"]["attempts"]
    text = json.dumps(payload, separators=(",", ":")).encode()
    old = dsse.Envelope(payload_type=PAYLOAD_TYPE, payload=text).signed_by(key)
    (folder / ENVELOPE).write_bytes(old.to_bytes())
    page = folder / "statement.html"
    for what in (folder.parent, page):
        with pytest.raises(StatementError, match=r"of another version, .*:v1: here is"):
            verify(what)

"""The containers: what their files say, and what their commands do where there is no Docker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_consortium.masking.boxes import BOX, LENGTH, MASK_RECORD, VECTOR
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.member.policy import MemberPolicy, read_member_policy
from fedif_flower.errors import RefusedByMemberError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import free_port, search_path, wait_for
from tests.integration.watch import MarkedProcesses, if_killed, kill_marked

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy" / "compose"


def compose(**given: str) -> dict:
    """Return the compose file as compose reads it where the environment has what is given."""
    text = (FOLDER / "compose.yml").read_text()
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: given.get(found[1], "") or found[2], text)
    assert "$" not in text
    return yaml.safe_load(text)


def services() -> dict[str, dict]:
    return compose()["services"]


def stages() -> dict[str, list[list[str]]]:
    """Return each stage's instructions by its name."""
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
    found: dict[str, list[list[str]]] = {}
    for words in map(str.split, re.sub(r"\\\n\s*", " ", text).splitlines()):
        if words[:1] == ["FROM"]:
            current = found.setdefault(words[3], [])
        elif found and words:
            current.append(words)
    return found


def copied(stage: str) -> list[tuple[list[str], str]]:
    """Return what a stage copies from the checkout, and where to."""
    found = []
    for words in stages()[stage]:
        if words[0] == "COPY" and not any(word.startswith("--from") for word in words):
            *sources, target = (word for word in words[1:] if not word.startswith("--"))
            found.append((sources, target))
    return found


def test_every_container_is_confined_and_has_its_own_secrets_alone():
    built = {service["image"] for service in services().values() if "build" in service}
    for name, service in services().items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & set(service)
        assert service["image"] in built
        assert not service["image"].endswith(":latest")
        own = {name}
        if name in ("superlink", "server"):
            own = {"federation", "removed"}
        if name != "setup":
            assert {volume.split(":")[0] for volume in service["volumes"]} == own
        assert not re.search("SECRET|PASSWORD|TOKEN", " ".join(service["environment"]))


def test_the_list_of_removed_members_has_a_volume_of_its_own():
    """The root is read-only, and a backup of the federation's volume must not have the list."""
    [directories] = [words for words in stages()["runtime"] if "useradd" in words]
    assert {"/federation", "/removed"} < set(directories)
    for name in ("setup", "superlink", "server"):
        service = services()[name]
        assert service["environment"]["FEDIF_REMOVED_MEMBERS"] == "/removed/members.csv"
        assert "removed:/removed" in service["volumes"]


def test_the_unit_of_the_superlink_may_write_the_list_of_removed_members():
    unit = (REPOSITORY / "deploy" / "systemd" / "fedif-superlink.service").read_text()
    [folder] = re.findall(r"^ExecStart=.* --in (\S+)$", unit, flags=re.M)
    [writable] = re.findall(r"^ReadWritePaths=(.*)$", unit, flags=re.M)
    # Without the list, `init` could not make it: the unit starts all the same.
    assert writable.split() == [folder, f"-{folder}.removed.csv"]


def test_only_the_superlink_has_a_port_and_that_on_loopback_unless_told_otherwise():
    with_ports = {name: s["ports"] for name, s in services().items() if "ports" in s}
    assert with_ports == {"superlink": ["127.0.0.1:9092:9092"]}
    told = compose(SUPERLINK_PUBLISHED="0.0.0.0:9092")["services"]["superlink"]["ports"]
    assert told == ["0.0.0.0:9092:9092"]


def test_the_context_is_what_is_copied_and_no_more():
    first, *kept = [
        line
        for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
        if line and not line.startswith(("#", "**/__pycache__"))
    ]
    assert first == "*"
    sources = {source for stage in ("build", "runtime") for s, _ in copied(stage) for source in s}
    assert {line.removeprefix("!") for line in kept} == sources
    assert all((REPOSITORY / source).exists() for source in sources)


# In the place of `fedif`: it makes the files that later steps read, and notes how it was called.
# As it does, it refuses members that were removed.
FEDIF = """#!/bin/sh
echo "$@" >>"$HOME/calls"
case "$1 $2" in
  "keeper init")
    mkdir -p "$3/keeper-state" && echo key >"$3/keeper-state/box-key.pub" && : >"$3/keeper.crt" ;;
  "federation keeper-client") : >"$FEDIF_FEDERATION/keeper-client.crt" ;;
  "federation invite") ! grep -qs 2026 "$FEDIF_FEDERATION/members/$3.toml" ;;
  "federation add-member") ! echo "$@" | grep -q hospital-1 ;;
  "node join")
    member=$(basename "$3" .invitation.toml)
    : >"$5/$member.answer.toml" && : >"$5/node.key.pub" ;;
esac
"""


class SetUp:
    """What `setup` and `server` do in a directory, without keys, certificates and connections."""

    def __init__(self, directory: Path, profiles: str = "") -> None:
        for name in ("bin", "federation/members", "keeper", "nodes"):
            (directory / name).mkdir(parents=True)
        for name, script in (("fedif", FEDIF), ("flower-superexec", "#!/bin/sh\n")):
            (directory / "bin" / name).write_text(script)
            (directory / "bin" / name).chmod(0o755)
        self.directory = directory
        self._environment = {
            **services()["setup"]["environment"],
            "APP": str(REPOSITORY),
            "FEDIF_FEDERATION": str(directory / "federation"),
            "HOME": str(directory),
            "KEEPER": str(directory / "keeper"),
            "NODES": str(directory / "nodes"),
            "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PROFILES": profiles,
        }

    def play(self, role: str) -> list[str]:
        """Play a role to its end; return how `fedif` was called."""
        calls = self.directory / "calls"
        calls.unlink(missing_ok=True)
        command = ["bash", FOLDER / "entrypoint.sh", role]
        subprocess.run(command, env=self._environment, check=True)
        return calls.read_text().splitlines()

    def policy(self, member: str) -> MemberPolicy:
        """Return what a member lets run, take part and leave."""
        return read_member_policy(self.directory / "nodes" / member / "member-policy.toml")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize("profiles", ["", "masked"])
def test_a_member_lets_masked_updates_leave_where_every_run_is_masked(tmp_path, profiles):
    """A member whose policy holds back what its node sends would take part in no round."""
    up = SetUp(tmp_path, profiles)
    up.play("setup")
    policy = up.policy("hospital-0")
    assert policy.state == tmp_path / "nodes" / "hospital-0" / "member-state"
    assert policy.runs.unknown_keys
    weights = {"weight": pack_array(np.zeros(3, np.float32))}
    received = RecordDict({"arrays": ArrayRecord(weights)})
    vector = np.arange(3, dtype=np.uint64)
    mask = ConfigRecord({BOX: bytes(400), LENGTH: 1.25})
    masked = {"arrays": ArrayRecord({VECTOR: pack_array(vector)}), MASK_RECORD: mask}
    guard = OutgoingPolicy(policy.leaves, None)
    if not profiles:
        with pytest.raises(RefusedByMemberError):
            guard.limit_reply(received, RecordDict(masked), 1)
        return
    left = guard.limit_reply(received, RecordDict(masked), 1)
    assert left["arrays"][VECTOR].numpy().tolist() == [0, 1, 2]
    assert left[MASK_RECORD] == mask
    assert {*policy.leaves.config} > {*LeavesSettings().config}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_member_that_was_removed_keeps_no_container_from_starting(tmp_path):
    """`fedif` refuses to invite or add it again; what is there for the others goes on."""
    up = SetUp(tmp_path)
    up.play("setup")
    members = tmp_path / "federation" / "members"
    (members / "hospital-0.toml").write_text('removed = ""\n')
    (members / "hospital-1.toml").write_text('removed = "2026-11-02 09:30:00+00:00"\n')
    invited = [call for call in up.play("setup") if "invite" in call]
    assert invited == ["federation invite hospital-0", "federation invite hospital-2"]
    answers = [f"{tmp_path}/federation/answers/hospital-{i}.answer.toml" for i in (0, 2)]
    assert up.play("server") == [f"federation add-member {' '.join(answers)}"]


class Containers:
    """The compose file's commands as processes of this machine, each where its container has it.

    Folders and the app's files are those of a directory; ports and hosts are those of loopback.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.services = compose()["services"]
        ports = {
            port: str(free_port())
            for port in ("9092", "9093", "9094", "9095", "9443", "9444", "9091")
        }
        folders = ("federation", "removed", "keeper", "nodes")
        self._replaced = {
            **{f"/{name}": str(directory / name) for name in folders},
            "/app": str(directory / "app"),
            **ports,
        }
        for name in (*folders, "app"):
            (directory / name).mkdir(mode=0o700)
        for source, target in ((REPOSITORY / s, t) for ss, t in copied("runtime") for s in ss):
            there = directory / "app" / target
            if source.is_dir():
                shutil.copytree(source, there, ignore=shutil.ignore_patterns("__pycache__"))
            elif target.endswith("/"):
                there.mkdir(exist_ok=True)
                shutil.copy(source, there)
            else:
                shutil.copy(source, directory / "entrypoint")
        self.marked = MarkedProcesses({})

    def here(self, text: str) -> str:
        """Return a text of the compose file with this machine's paths, ports and hosts."""
        for name, value in self._replaced.items():
            text = re.sub(rf"(?<![\w/.]){name}\b", value, text)
        return "127.0.0.1" if text in ("keeper", "superlink") else text

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Begin what a container does, or another command in it."""
        own = self.services[name]["environment"]
        words = map(self.here, command) if command else self.services[name]["command"]
        log = f"{name}-{command[0]}" if command else name
        return self.marked.start(
            *(self.directory / f"{log}.log", self.directory / "entrypoint", *words),
            cwd=self.directory,
            environment={
                "PATH": search_path(),
                "HOME": str(self.directory / "homes" / name),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                **{key: self.here(value) for key, value in own.items()},
            },
        )

    def exec(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command in a container; return its status and what it printed."""
        log = f"{name}-{command[0]}"
        (self.directory / f"{log}.log").unlink(missing_ok=True)
        return self.start(name, *command).wait(), self.log(log)

    def is_healthy(self, name: str) -> bool:
        _, program, *test = self.services[name]["healthcheck"]["test"]
        assert program == "entrypoint"
        return self.exec(name, *test)[0] == 0

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")


@contextlib.contextmanager
def containers(directory: Path) -> Iterator[Containers]:
    found = Containers(directory)
    with if_killed(kill_marked(found.marked.mark)):
        try:
            yield found
        finally:
            left = found.marked.terminate(grace=5.0)
            assert left == [], f"processes {left} could not be ended"


@pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("bash")), reason="needs nginx, bash"
)
@pytest.mark.deployment
@pytest.mark.all
@pytest.mark.timeout(1800)
def test_the_commands_of_the_containers_run_as_they_stand_in_a_clean_directory(tmp_path):
    with containers(tmp_path) as up:
        for _ in range(2):  # As at every `docker compose up`.
            status, printed = up.exec("setup", *up.services["setup"]["command"])
            assert status == 0, printed
        assert "kept" in printed
        assert "made" not in printed
        secrets = [*tmp_path.rglob("*.key"), *tmp_path.rglob("*.pem"), *tmp_path.rglob("box-key")]
        assert len(secrets) == 9
        assert not [path for path in secrets if path.stat().st_mode & 0o077]
        started = {}
        address = up.here("127.0.0.1:9093")
        healthy = ("healthy", "--or-idle", f"http://{address}/health")
        assert up.exec("server", *healthy[::2])[0] == 1
        assert up.exec("server", *healthy)[0] == 0  # There is no run.
        for name in ("keeper", "superlink", "server", "hospital-0"):
            started[name] = up.start(name)
            if name == "server":
                wait_for("members", lambda: "Starting Flower SuperExec" in up.log("server"), 300)
            else:
                wait_for(f"health of {name}", partial(up.is_healthy, name), 300, pause=1.0)
        settings = "num-clients=1 fraction-train=1.0 num-server-rounds=1 local-epochs=1"
        more = 'device="cpu"', 'run-name="october"'
        status, printed = up.exec("server", "run", *settings.split(), *more)
        assert status == 0, printed[-3000:] + up.log("server")
        folder = tmp_path / "federation" / "runs" / "october"
        assert json.loads((folder / "summary.json").read_text())["config"]["metrics.port"] > 0
        assert [row["status"] for row in read_rows(folder / "clients.csv")] == ["accepted"]
        assert len(read_rows(folder / "signatures.csv")) == 1
        answer = httpx.get(f"http://{address}/health", trust_env=False)
        assert "fedif_members_online 1.0" in answer.text
        for name in reversed(started):
            os.killpg(started[name].pid, signal.SIGTERM)
            started[name].wait(300)

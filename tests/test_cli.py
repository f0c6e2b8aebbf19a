from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fedif_flower.evidence.chained_log import ChainedLog
from tests.statement.runs import make_run

PROJECT = Path(__file__).parents[1]
HEAVY = ("torch", "torchvision", "flwr", "ray", "sklearn", "scipy", "matplotlib", "numpy", "PIL")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)


@pytest.mark.parametrize("door", ["fedif_studies.commands", "simulation"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["verify", "--help"],
        ["keeper", "--help"],
        ["app", "--help"],
        ["app", "show", "--help"],
        ["node", "log", "--help"],
        ["watch", "--help"],
        ["runs", "--help"],
    ],
)
def test_help_imports_nothing_heavy(door, arguments):
    code = f"""
import sys
sys.path.insert(0, "")
from {door} import main
try:
    main()
finally:
    print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    result = run_python(code, *arguments)
    assert "Usage:" in result.stdout
    assert result.stdout.splitlines()[-1] == "heavy: []"


def test_help_says_what_an_argument_means():
    assert (
        "a run's folder"
        in run_python("from fedif_flower.cli import main; main()", "show", "--help").stdout
    )


def test_the_package_has_its_public_names_without_importing_them():
    code = """
import sys
import fedif_flower
assert "torch" not in sys.modules
for name in fedif_flower.__all__:
    assert getattr(fedif_flower, name).__name__ == name, name
assert set(fedif_flower.__all__) <= set(dir(fedif_flower))
try:
    fedif_flower.FedIV
except AttributeError as error:
    print(error)
"""
    result = run_python(code)
    assert result.stdout == "module 'fedif_flower' has no attribute 'FedIV'\n", result.stderr


def test_the_paper_s_commands_come_with_the_checkout_only():
    def commands(door: str) -> str:
        code = f"from {door} import main; main()"
        return run_python("import sys; sys.path.insert(0, ''); " + code, "--help").stdout

    assert " paper " in commands("simulation")
    assert " paper " not in commands("fedif_studies.commands")
    assert "--docs" in run_python("from simulation import main; main()", "report", "--help").stdout


def test_an_error_is_one_line_without_a_traceback():
    result = run_python("from fedif_flower.cli import main; main()", "run", "-c", "seed=[2]")
    assert result.returncode == 1
    assert result.stderr.startswith("error: seed = [2]; allowed: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["--metrics-port", "70000"], "metrics-port = 70000; allowed: an integer >= 0"),
        (["-c", "log-format=xml"], "log-format = 'xml'; allowed: text, json"),
    ],
)
def test_what_a_run_says_of_itself_is_checked_first(settings, words):
    result = run_python("from fedif_flower.cli import main; main()", "run", *settings)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {words}")


def test_an_arena_in_process_takes_one_federation_at_a_time(tmp_path):
    code = "from fedif_studies.commands import main; main()"
    refused = run_python(
        code, "arena", "--jobs", "2", "--in-process", "--output-dir", str(tmp_path)
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: --jobs = 2; allowed: 1 with --in-process")
    assert not list(tmp_path.iterdir())


def test_it_says_which_version_it_is():
    result = run_python("from fedif_flower.cli import main; main()", "--version")
    assert result.stdout == f"fedif-flower {version('fedif-flower')}\n"


def test_a_statement_is_made_checked_and_found_changed(tmp_path):
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 5)
    names = tmp_path / "names.csv"
    names.write_text("client_id,name\n1,hospital-2\n")
    main = "from fedif_flower.cli import main; main()"
    key = ("--key", str(tmp_path / "key.pem"))
    made = run_python(main, "statement", str(run_dir), "--budget", "9", "--names", str(names), *key)
    assert made.returncode == 0, made.stderr
    assert "statement.html" in made.stdout
    table = (run_dir / "statement" / "statement.csv").read_text()
    assert "hospital-2" in table
    fingerprint = made.stdout.splitlines()[-1].removeprefix("Signed by: ")
    right = run_python(main, "verify", str(run_dir), "--key", fingerprint)
    assert right.returncode == 0, right.stderr
    assert right.stdout.startswith(f"Unchanged: {run_dir}")
    (run_dir / "clients.csv").write_text("")
    wrong = run_python(main, "verify", str(run_dir))
    assert (wrong.returncode, wrong.stderr) == (1, "error: clients.csv was changed\n")
    refused = run_python(main, "statement", str(run_dir), "--budget", "much", *key)
    assert refused.stderr.startswith("error: budget = 'much'; allowed: ")


def test_a_report_on_nothing_is_refused(tmp_path):
    code = "from fedif_flower.cli import main; main()"
    assert "no complete run" in run_python(code, "report", str(tmp_path)).stderr
    assert "is no directory" in run_python(code, "report", str(tmp_path / "x")).stderr


def test_a_keeper_s_log_is_shown_and_checked(tmp_path):
    file, lines = tmp_path / "log.txt", []
    log = ChainedLog(write=lines.append)
    log.append({"asked": "open", "run": 1, "members": ["[bold]ada"]})
    log.append({"asked": "sum", "refusal": "the keeper refuses: sums = 1"})
    file.write_text("\n".join([*lines, ""]))
    code = "from fedif_studies.commands import main; main()"
    shown = run_python(code, "keeper", "log", str(file))
    assert shown.stdout.splitlines() == [
        '{"asked": "open", "run": 1, "members": ["[bold]ada"]}',
        '{"asked": "sum", "refusal": "the keeper refuses: sums = 1"}',
        f"Unchanged: 2 lines, the last hash is {log.head}",
    ]
    file.write_text(file.read_text().replace("ada", "eve"))
    damaged = run_python(code, "keeper", "log", str(file))
    assert damaged.returncode == 1
    assert damaged.stderr.startswith("error: line 1 of the keeper's log does not follow")


def test_a_keeper_without_its_file_says_so(tmp_path):
    code = "from fedif_studies.commands import main; main()"
    result = run_python(code, "keeper", "--policy", str(tmp_path / "none.toml"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {tmp_path / 'none.toml'}: ")

"""The list of faults fits the package as it is; `python -m tests.mutants` tries them."""

from __future__ import annotations

import ast

from tests.mutants import LEAST_FOUND, ROOT, read_mutants


def test_each_fault_can_be_made_and_changes_the_code():
    mutants = read_mutants()
    assert len({(mutant.file, mutant.old) for mutant in mutants}) == len(mutants) >= LEAST_FOUND
    for mutant in mutants:
        text = (ROOT / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text))
        assert all((ROOT / test).is_file() for test in mutant.tests), mutant.notice

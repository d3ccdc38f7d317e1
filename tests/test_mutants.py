"""Each fault of ``scripts/mutants.py`` has its one place in ``src/`` and its tests: none is lost without a word."""

from __future__ import annotations

import ast

import pytest

from scripts.mutants import MUTANTS, ROOT, Mutant, place, sources


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.old[:40])
def test_a_mutant_stands_once_in_the_source_and_changes_what_it_does(mutant: Mutant) -> None:
    path = place(mutant)
    assert path is not None
    before, after = sources()[path], sources()[path].replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    assert all((ROOT / "tests" / test).exists() for test in mutant.tests)

"""Every known kind of cheat has one in the gallery, and every cheat an honest twin that looks like it and passes."""

import gallery
import pytest

TIMING = [f"T{n}" for n in range(1, 17)]
AVOIDANCE = [f"W{n}" for n in range(1, 14)]
CORRECTNESS = [f"C{n}" for n in (*range(1, 18), 19, 20)]
ENVIRONMENT = [f"E{n}" for n in range(1, 16)]
KINDS = [*TIMING, *AVOIDANCE, *CORRECTNESS, *ENVIRONMENT]
ELSEWHERE: dict[str, str] = {
    "T15": "a score out of odd times is nobody's code: test_timing.py feeds the scorer zero, negative, NaN and empty times",
}
"""Kinds that no candidate file can be, and where they are held instead."""
CHEATS, HONEST = gallery.read("cheats", backend=None), gallery.read("honest", backend=None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_cheat(kind):
    assert kind in ELSEWHERE or any(kind in e.kinds for e in CHEATS), f"no cheat of kind {kind}"


@pytest.mark.parametrize("entry", CHEATS, ids=[e.name for e in CHEATS])
def test_every_cheat_has_known_kinds_and_an_honest_twin_on_its_backend(entry):
    assert set(entry.kinds) <= set(KINDS)
    twins = [e for e in HONEST if e.name == entry.twin]
    assert [e.backend for e in twins] == [entry.backend] and twins[0].wanted == ["correct"]


def test_names_are_unique():
    names = [e.name for e in CHEATS + HONEST]
    assert len(names) == len(set(names))

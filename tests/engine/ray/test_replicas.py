"""Where the last states of a worker's clients lie."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.engine.ray.replicas import StateReplicas


def restored(replicas: StateReplicas) -> dict[int, int]:
    """What a worker has that takes all copies in order: client and round."""
    found: dict[int, int] = {}
    for copy in replicas.references():
        found |= copy
    return found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sets(st.integers(0, 6), max_size=5), max_size=30))
def test_everybodys_last_state_is_there_and_copies_are_let_go(rounds: list[set[int]]) -> None:
    replicas, wanted = StateReplicas(), dict[int, int]()
    for number, cohort in enumerate(rounds):
        replicas.add(cohort, dict.fromkeys(cohort, number))
        wanted |= dict.fromkeys(cohort, number)
        assert restored(replicas) == wanted
        assert sorted(replicas.clients()) == sorted(wanted)
        # a copy that is held is the last one of somebody
        for copy in replicas.references():
            assert any(wanted[cid] == then for cid, then in copy.items())


def test_copies_that_are_half_out_of_date_are_overgrown() -> None:
    replicas = StateReplicas()
    everybody = range(10)
    replicas.add(everybody, "all")
    assert not replicas.overgrown
    for number in range(9):  # "all" is still the last of one client
        replicas.add([number], str(number))
    assert len(replicas.references()) == 10 and not replicas.overgrown
    other = StateReplicas()
    for first in (0, 1, 2):  # three copies of four, of six clients
        other.add([first, 3, 4, 5], first)
    assert not other.overgrown
    other.add([3, 4, 5, 9], 4)
    assert other.overgrown
    clients = other.clients()
    other.clear()
    other.add(clients, "one")
    assert other.references() == ["one"] and not other.overgrown

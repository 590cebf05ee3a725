"""How long uploads are, and how far from the others'."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core.method import Upload
from fedtailor.core.uploads.moves import collected
from fedtailor.core.uploads.watch import SUMS, UploadWatch, compare_uploads, standing_out

SENT = {"params": {"w": torch.ones(5000), "n.running_var": torch.ones(3)}}


def upload(move: Tensor) -> Upload:
    return Upload({"params": {"w": 1 + move, "n.running_var": torch.full((3,), 9e9)}}, 1.0)


def moves(m: int = 9) -> Tensor:
    """What all have in common, and something of each one's own."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(5000, generator=draw) + torch.randn(m, 5000, generator=draw)


def test_norms_are_exact_and_statistics_do_not_count() -> None:
    watch = UploadWatch(["n.running_var"])
    found = watch.look(SENT, upload(torch.full((5000,), 0.5)))
    assert len(found) == 1 + SUMS
    assert float(found[0]) == pytest.approx(0.5 * 5000**0.5, rel=1e-5)
    same = watch.look(SENT, collected(upload(torch.full((5000,), 0.5))))
    assert torch.equal(found, same)  # wherever the mean is taken


def test_distances_are_near_those_of_whole_uploads() -> None:
    watch, all_ = UploadWatch(["n.running_var"]), moves()
    found = compare_uploads(torch.stack([watch.look(SENT, upload(m)) for m in all_]))
    exact = (all_ - all_.quantile(0.5, dim=0)).norm(dim=1)
    assert found.distance.tolist() == pytest.approx(exact.tolist(), rel=0.25)
    assert float(found.distance.mean()) == pytest.approx(float(exact.mean()), rel=0.06)
    assert not found.odd.any()


def test_the_same_in_one_call_for_all_clients() -> None:
    watch, all_ = UploadWatch(["n.running_var"]), moves()
    alone = torch.stack([watch.look(SENT, upload(m)) for m in all_])
    together = vmap(lambda m: watch.look(SENT, upload(m)))(all_)
    assert together.tolist() == [pytest.approx(row, abs=1e-3) for row in alone.tolist()]


@pytest.mark.parametrize("factor", [10.0, -4.0])
def test_one_that_goes_elsewhere_stands_out(factor: float) -> None:
    watch, all_ = UploadWatch(["n.running_var"]), moves()
    all_[4] *= factor
    found = compare_uploads(torch.stack([watch.look(SENT, upload(m)) for m in all_]))
    assert found.odd.nonzero().flatten().tolist() == [4]


def test_signs_that_nobody_knows_cannot_be_hidden_from() -> None:
    """A move made for one watch's signs is nothing there, and is seen by another."""
    known, secret = UploadWatch(["n.running_var"], 1), UploadWatch(["n.running_var"], 2)
    signs = known._signs_like(torch.zeros(20, SUMS)).reshape(-1)[:5000]
    move = torch.zeros(5000)
    move[:256], move[256:512] = 50 * signs[:256], -50 * signs[256:512]
    assert float(known.look(SENT, upload(move))[1:].norm()) < 1e-2
    assert float(secret.look(SENT, upload(move))[1:].norm()) > 100


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.9], []),  # where all are alike, twice the median counts
        ([1.0, 1.0, 1.0, 1.0, 2.1], [4]),
        ([1.0, 2.0, 4.0, 8.0, 16.0], []),  # and where they differ much, more
        ([1.0, 2.0, 4.0, 8.0, 400.0], [4]),
        ([1.0, 1.0, 1.0, 1.0, 0.01], []),  # short ones do no harm
        ([1.0, 1.0, 50.0], []),  # of three nobody can tell
        ([0.0, 0.0, 0.0, 0.0], []),
        ([1.0, 1.0, 1.0, torch.inf], [3]),
    ],
)
def test_who_stands_out(values: list[float], odd: list[int]) -> None:
    assert standing_out(torch.tensor(values)).nonzero().flatten().tolist() == odd


def test_nothing_uploaded_is_nothing_seen() -> None:
    found = UploadWatch([]).look({}, Upload())
    assert found.tolist() == [0.0] * (1 + SUMS)

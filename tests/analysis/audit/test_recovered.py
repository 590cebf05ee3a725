"""How near recovered rows are: PSNR as it is defined, and what knows nothing."""

from __future__ import annotations

import base64
import io

import pytest
import torch
from PIL import Image

from fedtailor.analysis.audit.recovered import (
    guesses,
    in_true_order,
    judged_images,
    judged_table,
    judged_words,
    picture,
    psnr,
    to_pixels,
)
from fedtailor.datasets.encoding.columns import Categorical, Numeric


def test_psnr_falls_by_20_dB_when_errors_grow_tenfold() -> None:
    once, tenfold = psnr(torch.tensor([1e-4, 1e-2])).tolist()
    assert once - tenfold == pytest.approx(20)


def test_the_error_is_over_all_channels_of_an_image() -> None:
    # an error of 0.1 everywhere is 20 dB; divided by three channels it would be 24.8
    true = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64)
    found = judged_images(true + 0.1, true, true + 0.4)
    assert found["each"] == [20.0]
    assert found["psnr"]["nearest"] == pytest.approx(7.959, abs=1e-3)


def test_pixels_are_what_they_were_before_normalisation() -> None:
    # an error of 0.2 between -1 and 1 is one of 0.1 between 0 and 1
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    assert judged_images(to_pixels(x + 0.2), to_pixels(x), to_pixels(x + 1))["each"] == [20.0]


def test_a_perfect_copy_does_not_make_the_mean_infinite() -> None:
    true = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]).double()
    made = true.clone()
    made[1] -= 0.1
    assert judged_images(made, true, true)["psnr"]["recovered"] == 70.0  # (120 + 20) / 2


def test_rows_are_matched_before_they_are_judged() -> None:
    true = torch.rand(5, 1, 3, 3, dtype=torch.float64)
    assert torch.equal(in_true_order(true.flip(0), true), true)
    assert judged_images(true.flip(0), true, true * 0)["each"] == [120.0] * 5


def test_what_knows_nothing() -> None:
    black, others = torch.zeros(1, 1, 4, 4).double(), torch.full((2, 1, 4, 4), 0.25).double()
    said = guesses(black, others, image=True, seed=0)
    assert torch.equal(said["nearest"], others[:1]) and said["constant"].unique().tolist() == [0.5]
    found = judged_images(torch.full((1, 1, 4, 4), 0.3).double(), black, others)
    assert found["psnr"]["constant"] == pytest.approx(6.021, abs=1e-3)
    assert found["nearer"] == 0  # 0.3 is not nearer than 0.25
    assert judged_images(black + 0.2, black, others)["nearer"] == 1


def test_columns_have_errors_in_their_own_unit() -> None:
    columns = [Numeric("age", 0.0, 50.0, 10.0), Categorical("sex", ("f", "m"))]
    true = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).double()
    made = torch.tensor([[0.3, 0.9, 0.2], [1.4, 0.8, 0.1]]).double()
    found = judged_table(made, true, true + 2, columns)
    age, sex = found["columns"]
    assert age["recovered"] == pytest.approx(10 * ((0.09 + 0.16) / 2) ** 0.5, abs=1e-6)
    assert sex["recovered"] == 0.5 and sex["measure"] == "wrong"
    assert age["nearest"] > age["recovered"]


def test_an_embedding_names_its_words() -> None:
    moved = torch.zeros(6, 2)
    moved[[2, 3, 5]] = 1.0
    found = judged_words(moved, torch.tensor([[2, 3, 0], [4, 2, 0]]))["words"]
    assert found == {"named": 3, "true": 3, "right": 0.666667, "found": 0.666667, "vocabulary": 6}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_has_the_originals_above(channels: int) -> None:
    true = torch.ones(2, channels, 4, 4)
    uri = picture(true * 0, true)
    drawn = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("L")
    assert drawn.size == (2 * 64, 2 * 64 + 16)  # with a line between
    assert [drawn.getpixel((10, y)) for y in (10, 70, 130)] == [255, 128, 0]

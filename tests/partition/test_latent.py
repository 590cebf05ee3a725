import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from fedtailor.core.errors import BadInput
from fedtailor.partition import groups
from fedtailor.partition.latent import latent_clusters

DIGITS = load_digits()
IMAGES = (DIGITS.images * 15).astype(np.uint8)[:, None]
TABLE = DIGITS.data.astype(np.float32)
LABELS = DIGITS.target


@pytest.fixture(autouse=True)
def one_thread():
    """Small work on a busy machine: threads that wait for one another cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("x", [IMAGES, TABLE], ids=["images", "table"])
def test_clusters_find_structure_and_leave_the_random_state_alone(x):
    torch.manual_seed(1)
    ours, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    found = latent_clusters(x, LABELS, 11, seed=0)
    assert torch.equal(ours, torch.get_rng_state())
    assert np.array_equal(theirs, np.random.get_state()[1])  # noqa: NPY002
    assert found.dtype == np.int64
    assert found.shape == LABELS.shape
    assert set(found) == set(range(11))
    assert adjusted_rand_score(found, LABELS) > 0.6


def test_clusters_depend_on_the_seed_alone():
    rows = slice(0, 600)
    torch.manual_seed(1)
    first = latent_clusters(IMAGES[rows], LABELS[rows], 5, seed=0)
    torch.manual_seed(2)
    with torch.no_grad():  # whatever the caller's mode
        assert np.array_equal(first, latent_clusters(IMAGES[rows], LABELS[rows], 5, seed=0))
    assert not np.array_equal(first, latent_clusters(IMAGES[rows], LABELS[rows], 5, seed=1))


def test_clusters_follow_a_given_embedding_and_share_out_to_clients():
    side = np.where(LABELS < 3, -100.0, 100.0)
    embed = lambda x: np.stack([side, np.zeros(len(x))], axis=1)
    found = latent_clusters(IMAGES, LABELS, 2, seed=0, embed=embed)
    assert adjusted_rand_score(found, LABELS < 3) == 1
    for share in groups(found, 15, seed=0):
        assert np.unique(LABELS[share] < 3).size == 1


def test_as_many_clusters_as_classes_are_the_classes():
    def embed(x):
        raise AssertionError("not needed")

    assert np.array_equal(latent_clusters(IMAGES, LABELS, 10, seed=0, embed=embed), LABELS)


@pytest.mark.parametrize("shape", [(40, 3, 1, 1), (40, 1, 28, 20), (40, 3, 5, 5)])
def test_pictures_of_any_size(shape):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = latent_clusters(x, np.arange(40) % 3, 2, seed=0)
    assert set(found) == {0, 1}


@pytest.mark.parametrize(
    ("x", "labels", "k", "more", "words"),
    [
        (TABLE, LABELS[:-1], 3, {}, ("1796", "1797")),
        (TABLE, LABELS, 0, {}, ("0 latent",)),
        (TABLE, LABELS, 1798, {}, ("1798",)),
        (TABLE.astype(np.int64), LABELS, 3, {}, ("int64", "(1797, 64)")),
        (TABLE[:, None], LABELS, 3, {}, ("(1797, 1, 64)",)),
        (TABLE, LABELS, 3, {"embed": lambda x: x[:5]}, ("(5, 64)",)),
        (TABLE, LABELS, 3, {"embed": lambda x: x[:, 0]}, ("(1797,)",)),
        (TABLE, LABELS, 3, {"embed": lambda x: x * np.nan}, ("finite",)),
    ],
)
def test_bad_input(x, labels, k, more, words):
    with pytest.raises(BadInput) as error:
        latent_clusters(x, labels, k, seed=0, **more)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters", "ignore:invalid value")
def test_rows_that_are_all_alike():
    with pytest.raises(BadInput, match="3 latent distributions"):
        latent_clusters(TABLE, LABELS, 3, seed=0, embed=lambda x: np.ones((len(x), 2)))

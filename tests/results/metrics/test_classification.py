"""Metrics of classes: scikit-learn's, for several clients at once, with ties and padding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics as sk

from fedtailor.results.metrics import classification as ours
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics.scoring import ANSWERS
from tests.results.metrics.drawn import DrawnClients, clients, padded

Reference = Callable[[np.ndarray, np.ndarray], float]
NAN = float("nan")


def recall_of(number: int) -> Reference:
    def reference(said: np.ndarray, truth: np.ndarray) -> float:
        if number not in truth:
            return NAN
        return float(sk.recall_score(truth, said.argmax(1), pos_label=number))

    return reference


def of_each_class(
    score_of: Callable[[np.ndarray, np.ndarray], float],
) -> Reference:
    """One against the rest, over the classes that some rows have and others have not."""

    def reference(said: np.ndarray, truth: np.ndarray) -> float:
        if said.shape[1] == 2:
            scores = [(said[:, 1] - said[:, 0], truth == 1)]
        else:
            shares = torch.from_numpy(said).softmax(-1).numpy()
            scores = [(shares[:, k], truth == k) for k in range(said.shape[1])]
        found = [score_of(yes, score) for score, yes in scores if 0 < yes.sum() < len(yes)]
        return float(np.mean(found)) if found else NAN

    return reference


def calibration_error(said: np.ndarray, truth: np.ndarray) -> float:
    shares = softmax(said, 1)
    sure, right = shares.max(1), shares.argmax(1) == truth
    total = 0.0
    for b in range(15):
        inside = (sure > b / 15) & (sure <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    return total


REFERENCES: dict[str, Reference] = {
    "accuracy": lambda said, truth: sk.accuracy_score(truth, said.argmax(1)),
    "balanced-accuracy": lambda said, truth: sk.balanced_accuracy_score(truth, said.argmax(1)),
    "macro-f1": lambda said, truth: sk.f1_score(truth, said.argmax(1), average="macro"),
    "roc-auc": of_each_class(sk.roc_auc_score),
    "average-precision": of_each_class(sk.average_precision_score),
    "sensitivity": recall_of(1),
    "specificity": recall_of(0),
    "log-loss": lambda said, truth: sk.log_loss(
        truth, softmax(said, 1), labels=range(said.shape[1])
    ),
    "perplexity": lambda said, truth: math.exp(
        sk.log_loss(truth, softmax(said, 1), labels=range(said.shape[1]))
    ),
    "brier": lambda said, truth: sk.brier_score_loss(
        truth, softmax(said, 1), labels=range(said.shape[1])
    ),
    "calibration-error": calibration_error,
}
MANY = [name for name in REFERENCES if not METRICS[name].two_classes]


def assert_equal_to_reference(name: str, drawn: DrawnClients) -> None:
    found = METRICS[name].function(drawn.outputs, drawn.labels, drawn.weight)
    assert found.dtype == torch.float64, name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, on absent classes
        expected = [
            REFERENCES[name](said.astype(np.float64), truth) if len(truth) else NAN
            for said, truth in drawn.each
        ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-9, err_msg=name)


def test_every_metric_of_classes_has_a_reference() -> None:
    assert list(REFERENCES) == [n for n, m in METRICS.items() if "classification" in m.tasks]


@settings(max_examples=30, deadline=None)
@given(drawn=clients())
def test_two_classes_as_in_scikit_learn(drawn: DrawnClients) -> None:
    for name in REFERENCES:
        assert_equal_to_reference(name, drawn)


@settings(max_examples=30, deadline=None)
@given(drawn=st.integers(3, 5).flatmap(lambda classes: clients(classes=classes)))
def test_more_classes_as_in_scikit_learn(drawn: DrawnClients) -> None:
    for name in MANY:
        assert_equal_to_reference(name, drawn)


@settings(max_examples=5, deadline=None)
@given(drawn=clients(classes=3, dtype="float32"))
def test_single_precision_is_computed_in_double(drawn: DrawnClients) -> None:
    for name in MANY:
        assert_equal_to_reference(name, drawn)


@pytest.mark.parametrize("name", MANY)
def test_many_rows(name: str) -> None:
    rng = np.random.default_rng(0)
    each = []
    for rows in (1500, 700):
        truth = rng.integers(0, 4, rows)
        each.append((rng.normal(size=(rows, 4)) * 2 + 2 * np.eye(4)[truth], truth))
    assert_equal_to_reference(name, padded(each, 1600))


def test_where_every_class_is_there_it_is_scikit_learns_one_against_the_rest() -> None:
    rng = np.random.default_rng(1)
    said, truth = rng.normal(size=(60, 3)), np.arange(60) % 3
    expected = sk.roc_auc_score(truth, softmax(said, 1), multi_class="ovr")
    found = ours.roc_auc(torch.from_numpy(said), torch.from_numpy(truth), torch.ones(60))
    assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_working_in_blocks_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    drawn = padded([(rng.normal(size=(n, 7)), rng.integers(0, 7, n)) for n in (30, 20)], 30)
    whole = METRICS[name].function(*drawn[:3])
    monkeypatch.setattr(ours, "BLOCK", 130)  # two classes at a time
    torch.testing.assert_close(METRICS[name].function(*drawn[:3]), whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", REFERENCES)
def test_several_models_on_the_same_rows(name: str) -> None:
    rng = np.random.default_rng(3)
    outputs = torch.from_numpy(rng.normal(size=(5, 2, 9, 2)))
    labels, weight = torch.from_numpy(rng.integers(0, 2, (2, 9))), torch.ones(2, 9)
    weight[1, 6:] = 0
    function = METRICS[name].function
    found = function(outputs, labels, weight)
    assert found.shape == (5, 2)
    for model in range(5):
        torch.testing.assert_close(found[model], function(outputs[model], labels, weight))


@pytest.mark.parametrize("name", REFERENCES)
def test_no_rows_give_no_number(name: str) -> None:
    function = METRICS[name].function
    outputs = torch.zeros(3, 4, 2)
    assert function(outputs, torch.ones(3, 4).long(), torch.zeros(3, 4)).isnan().all()
    nothing = function(outputs[:, :0], torch.zeros(3, 0).long(), torch.zeros(3, 0))
    assert nothing.shape == (3,)
    assert nothing.isnan().all()


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("rubbish", [NAN, float("inf"), -float("inf")])
def test_outputs_that_are_no_numbers_give_no_number(name: str, rubbish: float) -> None:
    outputs = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, rubbish], [1.0, 0.0]]])
    labels = torch.tensor([[1, 0], [1, 0]])
    found = METRICS[name].function(outputs, labels, torch.ones(2, 2))
    # but for what counts right answers: there the row has none
    assert found.isnan().tolist() == [False, name not in ANSWERS]


@pytest.mark.parametrize("rubbish", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 1])
def test_outputs_that_are_no_numbers_are_wrong_answers(rubbish: float, where: int) -> None:
    """As if the row had been given to a class that nobody has; whichever output it is."""
    outputs = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    outputs[[0, 4], where] = rubbish
    labels, ones = torch.tensor([1, 1, 0, 0, 0]), torch.ones(5)
    assert ours.right_answers(outputs, labels, ones).tolist() == [0, 1, 1, 1, 0]
    assert float(ours.accuracy(outputs, labels, ones)) == 3 / 5
    assert float(ours.sensitivity(outputs, labels, ones)) == 1 / 2
    assert float(ours.specificity(outputs, labels, ones)) == 2 / 3
    assert float(ours.balanced_accuracy(outputs, labels, ones)) == (1 / 2 + 2 / 3) / 2
    # of the positive rows 1 of 2 is found, by 1 answer; of the negative ones 2 of 3, by 2
    assert float(ours.macro_f1(outputs, labels, ones)) == pytest.approx((2 / 3 + 4 / 5) / 2)
    for name in ANSWERS:
        nothing = METRICS[name].function(torch.full((5, 2), rubbish), labels, ones)
        assert float(nothing) == 0, name


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("name", ["roc-auc", "average-precision"])
def test_one_class_cannot_be_ranked(name: str, label: int) -> None:
    labels = torch.full((6,), label)
    for classes in (2, 3):
        outputs = torch.arange(6.0 * classes).view(6, classes)
        assert METRICS[name].function(outputs, labels, torch.ones(6)).isnan()


def test_constant_outputs_rank_nothing() -> None:
    labels = torch.tensor([1, 0, 0, 0])
    assert float(ours.roc_auc(torch.ones(4, 2), labels, torch.ones(4))) == 0.5
    assert float(ours.average_precision(torch.ones(4, 2), labels, torch.ones(4))) == 0.25


def test_large_log_odds_keep_their_order() -> None:
    # both probabilities round to 1
    outputs = torch.tensor([[0.0, 60.0], [0.0, 50.0]])
    assert float(ours.roc_auc(outputs, torch.tensor([1, 0]), torch.ones(2))) == 1.0


def test_a_certain_and_wrong_answer_costs_as_much_as_in_scikit_learn() -> None:
    outputs, labels = torch.tensor([[900.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1])
    expected = sk.log_loss([1, 1], softmax(outputs.double().numpy(), 1), labels=[0, 1])
    assert float(ours.log_loss(outputs, labels, torch.ones(2))) == pytest.approx(expected, abs=1e-9)


def test_classes_that_no_row_has_do_not_count() -> None:
    # classes 0 and 2 among the labels, 0 and 1 among the answers
    outputs, labels = torch.eye(4)[[0, 0, 1, 0]], torch.tensor([0, 0, 2, 2])
    assert float(ours.balanced_accuracy(outputs, labels, torch.ones(4))) == 0.5
    # F1: 2·2 / (2 + 3), 0, 0 for classes 0, 1, 2; class 3 is nowhere
    assert float(ours.macro_f1(outputs, labels, torch.ones(4))) == pytest.approx(0.8 / 3)


@pytest.mark.parametrize("function", [ours.sensitivity, ours.specificity])
def test_sensitivity_and_specificity_are_of_two_classes(function: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="two classes, not 3"):
        function(torch.zeros(4, 3), torch.zeros(4).long(), torch.ones(4))


def test_a_confidence_on_the_edge_belongs_to_the_lower_bin() -> None:
    # 0.6 = 9/15 ends bin 9, 0.61 is in the next: 0.4 · 1/2 + 0.61 · 1/2; together it were 0.105
    said = torch.tensor([[0.4, 0.6], [0.39, 0.61]], dtype=torch.float64).log()
    found = ours.calibration_error(said, torch.tensor([1, 0]), torch.ones(2))
    assert float(found) == pytest.approx((0.4 + 0.61) / 2)


def test_perplexity_is_of_all_of_a_clients_rows_and_never_below_one() -> None:
    # one client is given 1/2 and 1/8 for its classes, the other is certain and right
    said = torch.tensor([[[4.0, 2, 1, 1], [4, 2, 1, 1]], [[1e9, 1, 1, 1], [1e9, 1, 1, 1]]]).log()
    found = ours.perplexity(said, torch.tensor([[0, 3], [0, 0]]), torch.ones(2, 2))
    assert found.tolist() == pytest.approx([4.0, 1.0])
    assert METRICS["perplexity"].bounds == (1.0, math.inf)
    assert not METRICS["perplexity"].higher_is_better


@pytest.mark.parametrize("name", [n for n in REFERENCES if METRICS[n].per_row])
@settings(max_examples=10, deadline=None)
@given(drawn=clients(classes=3))
def test_the_mean_of_its_rows_is_the_metric(name: str, drawn: DrawnClients) -> None:
    metric = METRICS[name]
    assert metric.per_row is not None
    rows = metric.per_row(*drawn[:3])
    assert rows.shape == drawn.weight.shape
    assert (rows[drawn.weight == 0] == 0).all()
    expected = metric.function(*drawn[:3])
    for client, value in enumerate(expected.tolist()):
        own = rows[client][drawn.weight[client] > 0]
        assert float(own.mean()) == pytest.approx(value, nan_ok=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", REFERENCES)
def test_the_same_on_a_gpu(name: str) -> None:
    rng = np.random.default_rng(4)
    drawn = padded([(rng.normal(size=(n, 2)), rng.integers(0, 2, n)) for n in (40, 20)], 40)
    function = METRICS[name].function
    there = function(*(tensor.cuda() for tensor in drawn[:3]))
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), function(*drawn[:3]), rtol=0, atol=1e-12)

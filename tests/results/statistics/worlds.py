"""Small records for the tests of this folder."""

import numpy as np

from fedtailor.results.statistics import PairedRows, Scoring


def is_right(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (outputs.argmax(-1) == labels).astype(float)


def _accuracy(outputs: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return (is_right(outputs, labels) * weight).sum(-1) / weight.sum(-1)


ACCURACY = Scoring(_accuracy, is_right)
WHOLE_ACCURACY = Scoring(_accuracy)  # the same as a function of all rows


def _auc(outputs: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Share of pairs in order, the equal ones half; nan with one class alone."""
    score = outputs[..., -1] - (outputs[..., 0] if outputs.shape[-1] == 2 else 0)
    ahead = np.sign(score[..., :, None] - score[..., None, :]) / 2 + 0.5
    pairs = (labels == 1)[:, None] & (labels == 0)[None, :]
    counted = pairs * weight[..., :, None] * weight[..., None, :]
    with np.errstate(invalid="ignore"):
        return (ahead * counted).sum((-1, -2)) / counted.sum((-1, -2))


AUC = Scoring(_auc, ranking=True)
SQUARED_ERROR = Scoring(
    lambda o, y, w: ((o[..., 0] - y) ** 2 * w).sum(-1) / w.sum(-1),
    lambda o, y: (o[..., 0] - y) ** 2,
    higher_is_better=False,
    share=False,
)


def says(right: list[int], labels: np.ndarray) -> np.ndarray:
    """Outputs for two classes that are right where `right` is 1."""
    return np.eye(2)[np.where(np.array(right) == 1, labels, 1 - labels)]


def rows_of(ours: list[int], alone: list[int], first: int = 0) -> PairedRows:
    """Test rows that both models have right (1) or wrong (0)."""
    labels = np.arange(len(ours)) % 2
    rows = np.arange(first, first + len(ours))
    return PairedRows(rows, labels, says(ours, labels), says(alone, labels))


def exchanged(paired: dict[str, list[PairedRows]]) -> dict[str, list[PairedRows]]:
    """The same with ours and alone in each other's place."""
    return {
        name: [PairedRows(r.rows, r.labels, r.alone, r.ours) for r in repeats]
        for name, repeats in paired.items()
    }


def shuffled(paired: dict[str, list[PairedRows]], seed: int = 0) -> dict[str, list[PairedRows]]:
    """The same rows in another order."""
    rng = np.random.default_rng(seed)

    def one(r: PairedRows) -> PairedRows:
        order = rng.permutation(len(r.rows))
        return PairedRows(r.rows[order], r.labels[order], r.ours[order], r.alone[order])

    return {name: [one(r) for r in repeats] for name, repeats in paired.items()}


def drawn(
    clients: int, rows: int, repeats: int, seed: int, *, better: float = 0.0, tested: float = 0.5
) -> dict[str, list[PairedRows]]:
    """Two models of equal noise on random labels, of which ours knows `better` more."""
    rng = np.random.default_rng(seed)
    out = {}
    for k in range(clients):
        labels = rng.integers(0, 2, rows)
        repeated = []
        for _ in range(repeats):
            at = rng.permutation(rows)[: int(tested * rows)]
            sign = 2.0 * labels[at] - 1
            ours, alone = (
                np.stack([np.zeros(len(at)), know * sign + rng.normal(size=len(at))], axis=1)
                for know in (0.5 + better, 0.5)
            )
            repeated.append(PairedRows(at, labels[at], ours, alone))
        out[f"site-{k}"] = repeated
    return out

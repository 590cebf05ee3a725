"""What may be said of a comparison: tests, intervals, the answer, and sentences.

Everything here is a function of arrays: what two models say of the same test rows.
"""

from fedtailor.results.statistics.decision import (
    Decision,
    decide,
    decide_clients,
    holm,
    holm_corrected,
    pick_method,
    usual_margin,
)
from fedtailor.results.statistics.ended import TrainingEnd, training_end
from fedtailor.results.statistics.intervals import both_interval, clients_interval, rows_interval
from fedtailor.results.statistics.paired import (
    HELD_OUT,
    NEVER_TRAINED,
    Gains,
    PairedRows,
    Scoring,
    measure_gains,
)
from fedtailor.results.statistics.permutation import clients_test, rows_test, sign_flip_p
from fedtailor.results.statistics.scoring import scoring_of
from fedtailor.results.statistics.sentences import Wording, sentences

__all__ = [
    "HELD_OUT",
    "NEVER_TRAINED",
    "Decision",
    "Gains",
    "PairedRows",
    "Scoring",
    "TrainingEnd",
    "Wording",
    "both_interval",
    "clients_interval",
    "clients_test",
    "decide",
    "decide_clients",
    "holm",
    "holm_corrected",
    "measure_gains",
    "pick_method",
    "rows_interval",
    "rows_test",
    "scoring_of",
    "sentences",
    "sign_flip_p",
    "training_end",
    "usual_margin",
]

"""What a site takes part in: the limits in its file, with defaults that refuse what shows rows.

Limits make attacks dearer; a proof is DP-SGD's alone (docs/privacy.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedtailor.core.inputs.settings_file import setting
from fedtailor.core.options import Count, Whole

SCORES, BASELINE, ERROR, COLUMNS = "scores", "baseline", "error", "columns"
# what a site may tell: of its test rows metrics and losses, of its training rows what preprocessing
# is made of; no rows
Metric = Literal["scores", "baseline", "error", "columns"]
Names = Annotated[tuple[str, ...], "a list of names, e.g. ['fedala']"]


@dataclass(frozen=True, kw_only=True)
class SiteLimits:
    """What a site agrees to, as its file says it."""

    allow: Names | None = setting(
        "methods that it takes part in; left out: all that come with FedTailor", None
    )
    allow_models: Names = setting(
        "networks beside those that come with FedTailor (package.module:factory)", ()
    )
    model: str = setting(
        "the network that it trains, where sites have several; left out: the plan's for its number",
        "",
    )
    federations: Names = setting(
        "ids of federations that it takes part in; left out: the first that it joins", ()
    )
    ask_first: bool = setting(
        "join no federation before its plan was accepted (fedtailor federation accept)", False
    )
    min_batch: Count = setting("least batch: steps of few rows show them", 4)
    min_rows: Count = setting("least training rows that an upload must rest on", 16)
    min_noise: Annotated[float, (0.0, 1e6)] = setting("least dp_noise of DP-SGD; 0: none", 0.0)
    max_epsilon: Annotated[float, (0.0, 1e6)] = setting(
        "refuse what would bring ε of DP-SGD above it, over all federations; 0: no limit", 0.0
    )
    max_rounds: Whole = setting("refuse after so many rounds, over all federations; 0: never", 0)
    max_answers: Whole = setting(
        "refuse after so many answers (uploads, scores), over all federations; 0: never", 0
    )
    share: tuple[Metric, ...] = setting(
        "what may leave: its scores, that of training alone, the error of the gain; columns: sums "
        "and categories, before the first round",
        (SCORES, BASELINE, ERROR),
    )
    min_category: Count = setting(
        "least training rows of a category or word whose name may leave (columns)", 5
    )
    counts: Literal["rounded", "exact"] = setting(
        "how many rows it has for validation and testing, as it may leave: in tens, or exact",
        "rounded",
    )
    score_every: Count = setting("tell scores of each kind at most every so many rounds", 1)
    score_digits: Annotated[int, (0, 17)] = setting(
        "significant digits of scores that leave; 0: all", 3
    )
    min_scored: Count = setting("least test rows that a score may rest on", 10)

    def rounded(self, value: float) -> float:
        """A score as it may leave.

        Example:
          >>> SiteLimits().rounded(0.123456), SiteLimits(score_digits=0).rounded(0.123456)
          (0.123, 0.123456)
        """
        return float(f"{value:.{self.score_digits}g}") if self.score_digits else value

    def counted(self, rows: int) -> int:
        """A number of rows as it may leave: to the nearest ten, but 10 where there are any.

        Example:
          >>> SiteLimits().counted(43), SiteLimits().counted(3), SiteLimits().counted(0)
          (40, 10, 0)
        """
        return rows if self.counts == "exact" or not rows else max(10, (rows + 5) // 10 * 10)

"""The page of an audit: pictures and tables in one file that needs nothing else."""

from __future__ import annotations

from typing import Any

from fedtailor.report.page import filled

MODELS = {"personal": "personal models", "upload": "uploads", "global": "the global model"}
RATES = (("tpr@0.05", "5 %"), ("tpr@0.01", "1 %"), ("tpr@0.001", "0.1 %"))


def shown_interval(found: dict[str, Any] | None) -> str:
    """A measure with its interval, e.g. "0.512 (0.468 to 0.560)"; "–" where there is none.

    Example:
      >>> shown_interval({"value": 0.5, "interval": [0.25, 0.75]})
      '0.500 (0.250 to 0.750)'
    """
    if found is None:
        return "–"
    low, high = found["interval"]
    return f"{found['value']:.3f} ({low:.3f} to {high:.3f})".replace("-", "−")


def membership_rows(found: dict[str, Any]) -> list[dict[str, str]]:
    """One row for each kind of model and score, in words."""
    out = []
    for told in found["membership"]:
        model, protection = MODELS[told["model"]], told["protection"]
        for score, words in (("loss", "loss"), ("calibrated", "against other models")):
            one = told.get(score, {"refused": told.get("refused", "")})
            row = {"model": model, "protection": protection, "score": words}
            row["refused"] = one.get("refused", "")
            row["rows"] = f"{one['members']} / {one['non_members']}" if "members" in one else "–"
            row["auc"] = shown_interval(one.get("auc"))
            row |= {name: shown_interval(one.get(name)) for name, _ in RATES}
            row["advantage"] = shown_interval(one.get("advantage"))
            out.append(row)
            if "refused" in told:
                break
    return out


def inversion_rows(found: dict[str, Any]) -> list[dict[str, str]]:
    """One row for each attack, in words."""
    out = []
    for case in found["inversion"]:
        measure = case.get("psnr") or case.get("rmse") or {}
        digits = 1 if "psnr" in case else 3
        right = case.get("labels", {}).get("right")
        cost = case["dp"]["epsilon"]
        row = {
            "client": case["client"],
            "rows": f"{case['rows']} of {case['of_rows']}",
            "local_steps": str(case["local_steps"]),
            "protection": case["protection"],
            "epsilon": "–" if cost is None else f"{cost:.2f}",
            "state": case["state"],
            "labels": "–" if right is None else f"{100 * right:.0f} %",
            "nearer": f"{case['nearer']} of {case['rows']}" if "nearer" in case else "–",
            "note": case.get("note", ""),
            "words": "",
        }
        if "words" in case:
            words = case["words"]
            row["words"] = (
                f"names {words['named']} of {words['vocabulary']} words: {100 * words['right']:.0f}"
                f" % of them are in the rows, {100 * words['found']:.0f} % of the rows' words"
            )
        for name in ("recovered", "nearest", "constant", "noise"):
            row[name] = f"{measure[name]:.{digits}f}" if name in measure else "–"
        out.append(row)
    return out


def audit_page(found: dict[str, Any]) -> str:
    """The page as HTML.

    Args:
      found: what `audit.json` has.
    """
    return filled(
        __package__,
        "audit.html.j2",
        a=found,
        cases=list(zip(found["inversion"], inversion_rows(found), strict=True)),
        members=membership_rows(found),
        rates=RATES,
        unit="PSNR, dB" if found["kind"] == "image" else "error, in standard deviations",
    )

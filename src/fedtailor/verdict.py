"""What a comparison means, in words: does federation help these clients, which, and by how much?"""

from __future__ import annotations

from statistics import median
from typing import Any

YARDSTICK = "local"


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _names(names: list[str], most: int = 4) -> str:
    if len(names) <= most:
        return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + "".join(names[-1:])
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _one(method: str, row: dict[str, Any], clients: int) -> str:
    gains = row["gain"]
    mean = sum(gains.values()) / clients
    way = "gain" if mean >= 0 else "loss"
    text = (
        f"{method}: {row['better_off']} of {clients} clients are better off than alone, "
        f"{row['worse_off']} worse off; mean {way} {_points(abs(mean))} points"
    )
    worst = sorted((g, name) for name, g in gains.items() if g < -1e-9)
    if worst:
        text += f"; better off alone: {_names([f'{n} (by {_points(-g)})' for g, n in worst], 3)}"
    return text + "."


def verdict(summary: dict[str, Any]) -> list[str]:
    """Sentences, the most important first.

    Args:
      summary: of a comparison (`summary.json`); where not all methods were run with all seeds,
        `seeds` of a method are its own.
    """
    table = summary["table"]
    others = [m for m in table if m != YARDSTICK]
    clients = len(table[YARDSTICK]["per_client"])
    alone = table[YARDSTICK]
    rows = median(summary["test_rows"].values())
    small = (
        f"A client has {rows:g} test rows (median), so one row is {_points(1 / rows)} points: "
        "differences of that size at a single client say little."
    )
    if not others:
        return ["Only training alone was run: name a method to compare it with.", small]

    def mean(method: str) -> float:
        return float(table[method]["accuracy"]["mean"]["mean"])

    def low(method: str) -> float:
        return float(table[method]["accuracy"]["bottom5"]["mean"])

    best = max(others, key=mean)
    gain = mean(best) - mean(YARDSTICK)
    lines = []
    if gain > 0 and table[best]["better_off"] > table[best]["worse_off"]:
        lines.append(
            f"Federation helps here: {best} is best on average, with {_points(mean(best))} % "
            f"against {_points(mean(YARDSTICK))} % alone ({_points(gain)} points), and "
            f"{table[best]['better_off']} of {clients} clients gain by it."
        )
    elif gain > 0:
        lines.append(
            f"Federation helps on average, but not most clients: {best} is {_points(gain)} points "
            f"above training alone, yet only {table[best]['better_off']} of {clients} clients gain."
        )
    else:
        below = (
            f"{_points(-gain)} points below" if _points(abs(gain)) != "0.0" else "no better than"
        )
        lines.append(
            f"Federation does not help here: the best method, {best}, is {below} training alone "
            f"({_points(mean(YARDSTICK))} %)."
        )
    fairest = max(others, key=low)
    change = low(fairest) - low(YARDSTICK)
    lines.append(
        f"For the worst-off 5 % of clients {fairest} is best: {_points(low(fairest))} % against "
        f"{_points(low(YARDSTICK))} % alone ({'+' if change >= 0 else '−'}{_points(abs(change))})."
    )
    lines += [_one(m, table[m], clients) for m in sorted(others, key=mean, reverse=True)]
    lonely = [
        name
        for name, own in alone["per_client"].items()
        if all(table[m]["per_client"][name] < own - 1e-9 for m in others)
    ]
    if lonely:
        lines.append(f"Better off alone whatever the method: {_names(lonely, 8)}.")
    once = [m for m in table if len(table[m].get("seeds", summary["seeds"])) == 1]
    if once:
        whose = "" if len(once) == len(table) else f" of {_names(once)}"
        lines.append(f"One seed{whose}: run more (--seeds 3) before relying on small differences.")
    return [*lines, small]

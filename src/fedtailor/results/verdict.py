"""What a comparison means, in words: does federation help these clients, which, and by how much?"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

YARDSTICK = "local"


def points(value: float) -> str:
    """An accuracy, or a difference of two, for people."""
    return f"{100 * value:.1f}"


def one_row(tested: Iterable[int]) -> str:
    """How much a single test row counts, by how many the clients have."""
    rows = median(tested)
    return (
        f"A client has {rows:g} test rows (median), so one row is {points(1 / rows)} points: "
        "differences of that size at a single client say little."
    )


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
        f"{row['worse_off']} worse off; mean {way} {points(abs(mean))} points"
    )
    worst = sorted((g, name) for name, g in gains.items() if g < -1e-9)
    if worst:
        text += f"; better off alone: {_names([f'{n} (by {points(-g)})' for g, n in worst], 3)}"
    return text + "."


def _look_alike(one: float, other: float) -> bool:
    """Whether two accuracies are the same as far as is shown."""
    return points(abs(one - other)) == "0.0"


def _worst_off(lows: dict[str, float], alone: float) -> str:
    """What is best for the worst-off clients, by their accuracy with each method and alone."""
    most = max(lows.values())
    best = [method for method, value in lows.items() if _look_alike(value, most)]
    with_it, without = f"{points(most)} %", f"{points(alone)} %"
    change = f"({'+' if most >= alone else '−'}{points(abs(most - alone))})"
    if _look_alike(most, alone):
        told = f"{_names(['training alone', *best])} are equally good: {without}."
    elif most < alone:
        told = f"training alone is best: {without} against {with_it} with {_names(best)} {change}."
    else:
        how = "is best" if len(best) == 1 else "are equally good"
        told = f"{_names(best)} {how}: {with_it} against {without} alone {change}."
    return f"For the worst-off 5 % of clients {told}"


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
    small = one_row(summary["test_rows"].values())
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
            f"Federation helps here: {best} is best on average, with {points(mean(best))} % "
            f"against {points(mean(YARDSTICK))} % alone ({points(gain)} points), and "
            f"{table[best]['better_off']} of {clients} clients gain by it."
        )
    elif gain > 0:
        lines.append(
            f"Federation helps on average, but not most clients: {best} is {points(gain)} points "
            f"above training alone, yet only {table[best]['better_off']} of {clients} clients gain."
        )
    else:
        below = f"{points(-gain)} points below" if points(abs(gain)) != "0.0" else "no better than"
        lines.append(
            f"Federation does not help here: the best method, {best}, is {below} training alone "
            f"({points(mean(YARDSTICK))} %)."
        )
    lines.append(_worst_off({m: low(m) for m in others}, low(YARDSTICK)))
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

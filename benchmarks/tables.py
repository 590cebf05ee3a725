"""Puts the committed results into the docs: every table there is made here.

python benchmarks/tables.py            writes the tables between their markers
python benchmarks/tables.py --check    exits with 1 if one is not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ranking
from paper_claims import judged

from fedtailor.reproduce.shown.writing import (
    SIGNS,
    beside_paper,
    by_place,
    ends_of_training,
    has_number,
    order,
    ours,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WHO = ("hostile", "honest")
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rows(header: list[str], body: list[list[str]]) -> str:
    rule = ["---", *(["---:"] * (len(header) - 1))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *body])


def per_cent(value: float) -> str:
    return f"{100 * value:.1f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f}"


def made_by(report: dict[str, Any]) -> str:
    return f"\n\n`{report['command']}`, commit {report['commit']}, {report['device']}."


def against_alone(summary: dict[str, Any], method: str) -> tuple[str, str]:
    """What a method gains over training alone, with its interval, and what may be said of it."""
    best = summary["decision"]
    found = best if method == best["method"] else summary["others"].get(method)
    if found is None:
        return "–", "–"
    gain, low, high = (100 * v for v in (found["gain"], *found["interval"]))
    return f"{gain:+.1f} ({low:+.1f} to {high:+.1f})", found["answer"]


def comparison(name: str) -> str:
    report = read(name)
    table = report["summary"]["table"]
    seeds = len(report["summary"]["seeds"])
    order = sorted(table, key=lambda m: -table[m]["accuracy"]["mean"]["mean"])
    body = []
    for method in order:
        row = table[method]
        cell = row["accuracy"]
        mean = per_cent(cell["mean"]["mean"])
        if seeds > 1:
            mean += f" ± {per_cent(cell['mean']['std'])}"
        body.append(
            [
                method,
                mean,
                *(per_cent(cell[k]["mean"]) for k in ("std", "bottom5", "top5")),
                *against_alone(report["summary"], method),
                megabytes(row["bytes"]["up"]),
                megabytes(row["bytes"]["down"]),
                f"{row['seconds']:.1f}",
            ]
        )
    header = [
        "method",
        "mean %",
        "std",
        "bottom 5 %",
        "top 5 %",
        "gain over training alone, points",
        "answer",
        "MB up",
        "MB down",
        "s",
    ]
    return rows(header, body) + made_by(report)


def _share(row: dict[str, Any], key: str) -> str:
    return f"{100 * row[key]:.0f} %" if key in row else "–"


def speed(name: str) -> str:
    report = read(name)
    body = []
    for r in report["rows"]:
        if "failed" in r:
            body.append([r["name"], "failed", r["failed"], *["–"] * 6])
            continue
        asked = f"{r['at_least']:g}×" if r["at_least"] else "–"
        memory = f"{r['peak_memory_gb']:.1f}" if r["peak_memory_gb"] else "–"
        body.append(
            [
                r["work"],
                f"{r['loop_seconds']:.2f}{_between(r, 'loop', 2)}",
                f"{r['seconds']:.3f}{_between(r, 'fedtailor', 3)}",
                f"**{r['ratio']:.1f}×**",
                asked,
                f"{r['step_ms']:.2f}",
                f"{_share(r, 'of_memory_floor')} / {_share(r, 'of_compute_floor')}",
                f"{r['preparing_seconds']:.0f}",
                memory,
            ]
        )
    header = [
        "work",
        "loop, s",
        "FedTailor, s",
        "ratio",
        "asked for",
        "step, ms",
        "memory / compute floor reached",
        "preparing, s",
        "GB",
    ]
    note = f" {report['note'][0].upper()}{report['note'][1:]}." if "note" in report else ""
    return rows(header, body) + made_by(report) + note


def _between(row: dict[str, Any], side: str, digits: int) -> str:
    """Where half of the rounds lie, if there were enough of them."""
    found = row.get("middle_half", {}).get(side)
    return f" ({found[0]:.{digits}f} to {found[1]:.{digits}f})" if found else ""


def beside_fedavg(name: str) -> str:
    """Rounds of methods as multiples of FedAvg's, beside what their operations suggest."""
    report = read(name)
    body = []
    for r in report["rows"]:
        if "failed" in r:
            body.append([r["name"], "failed", r["failed"], *["–"] * 6])
            continue
        known = {k: f"{r[k]:.2f}" if k in r else "–" for k in ("beside_fedavg", "expected")}
        body.append(
            [
                r["work"],
                f"{r['loop_seconds']:.2f}",
                f"{r['seconds']:.3f}",
                f"**{r['ratio']:.1f}×**",
                known["beside_fedavg"],
                known["expected"],
                f"{round(100 * (r['of_expected'] - 1)):+d} %" if "of_expected" in r else "–",
                f"{r['preparing_seconds']:.0f}",
                r.get("expected_from", "–"),
            ]
        )
    header = [
        "work",
        "loop, s",
        "FedTailor, s",
        "ratio",
        "times FedAvg",
        "expected",
        "apart",
        "preparing, s",
        "expected from passes over the rows",
    ]
    return rows(header, body) + made_by(report)


def before_after(name: str) -> str:
    report = read(name)
    body = [
        [
            r["name"],
            *(f"{1e3 * r[f'{k}_seconds']:.1f}" for k in ("before", "after")),
            f"{r['ratio']:.2f}",
        ]
        for r in report["rows"]
    ]
    header = ["row", "before, ms a round", "after, ms", "after / before"]
    return rows(header, body) + made_by(report) + f" Before: {report['before']}."


def evaluation(name: str) -> str:
    report = read(name)
    body = [
        [what, f"{1e3 * seconds:.1f}", f"{report['against_accuracy'][what]:.2f}"]
        for what, seconds in report["seconds"].items()
    ]
    return rows(["", "ms", "against accuracy"], body) + made_by(report)


def same_ten(name: str) -> str:
    report = read(name)
    body = [
        [r["row"], *(per_cent(r[k]) for k in ("accuracy", "worst", "best")), r["paper"]]
        for r in report["rows"]
    ]
    header = ["", "mean of the ten, %", "worst", "best", "in the paper"]
    return rows(header, body) + made_by(report)


def growth(name: str) -> str:
    found = read(name)["growth"]
    few, many = found["seconds"]["1000"], found["seconds"]["10000"]
    return (
        f"Out of 1,000 clients {few:.3f} s a round, out of 10,000 {many:.3f} s: "
        f"**{found['ratio']:.2f}×** (asked for: at most {found['at_most']:g}×)."
    )


def profile(name: str) -> str:
    report, body = read(name), []
    for way, found in report["profile"].items():
        if not isinstance(found, dict) or "failed" in found:
            continue
        shares = ", ".join(f"{k} {100 * v:.0f} %" for k, v in found["shares"].items())
        busy = f"{found['busy_seconds']:.3f}"
        body.append([way, f"{found['seconds']:.3f}", busy, f"{found['kernels']:,}", shares])
    # the other rows of the same file name its command
    told = "" if report.get("rows") else made_by(report)
    return rows(["way", "round, s", "sum of kernels, s", "kernels", "where"], body) + told


def cifar(name: str) -> str:
    report = read(name)
    body = [
        [r["method"], "failed", r["failed"], "–", "–", "–"]
        if "failed" in r
        else [
            r["method"],
            per_cent(r["accuracy"]["mean"]),
            per_cent(r["accuracy"]["bottom5"]),
            f"{r['wall_seconds']:.0f}",
            f"{r['preparing_seconds']:.0f}",
            f"{(r['train_seconds'] - r['preparing_seconds']) / r['rounds']:.2f}",
        ]
        for r in report["runs"]
    ]
    header = ["method", "mean %", "bottom 5 %", "wall, s", "of that preparing, s", "s a round"]
    return rows(header, body) + made_by(report)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], bool):
        return f"{sum(values)} of {len(values)}"
    if isinstance(values[0], dict):
        return {k: _mean([v[k] for v in values]) for k in values[0]}
    return sum(values) / len(values)


def claims(name: str) -> str:
    report = read(name)
    body = []
    for claim in report["claims"].values():
        runs = list(claim["seeds"].values())
        numbers = [
            f"{key} {_shown(_mean([run[key] for run in runs]))}"
            for key in runs[0]
            if key not in ("holds", "seconds")
        ]
        held = f"**{claim['holds']} of {claim['of']}**"
        body.append([claim["claim"].splitlines()[0], held, "; ".join(numbers)])
    return rows(["claim", "holds in", "means over seeds"], body) + made_by(report)


def scale(name: str) -> str:
    if not (RESULTS / f"{name}.json").exists():
        return "Not measured yet: `python benchmarks/scale.py`."
    report = read(name)
    body = [
        [
            f"{r['clients']:,} clients, {r['cohort']:,} a round",
            str(r["workers"] or "none: one process"),
            f"{r['start_seconds']:.1f}",
            f"{r['round_seconds']:.2f}",
            f"{r['evaluation_seconds']:.2f}" if r["evaluation_seconds"] else "–",
            f"{r['clients_per_second']:,.0f}",
            f"{r['driver_peak_memory_bytes'] / 1e9:.1f}",
            f"{1e3 * r['processor_seconds']:,.0f}" if "processor_seconds" in r else "–",
            f"{1e3 * r['worker_processor_seconds']:,.0f}"
            if r.get("worker_processor_seconds")
            else "–",
            f"**{per_cent(r['round_efficiency'])} %**" if "round_efficiency" in r else "–",
            f"{per_cent(r['processor_efficiency'])} %" if "processor_efficiency" in r else "–",
        ]
        for r in report["rows"]
    ]
    header = [
        "work",
        "workers",
        "start, s",
        "round, s",
        "evaluation of all, s",
        "clients/s",
        "memory, GB",
        "driver computes, ms",
        "busiest worker computes, ms",
        "efficiency",
        "of the processor",
    ]
    return rows(header, body) + made_by(report)


def soak(name: str) -> str:
    found = read(name)
    memory = {
        who: [m[who] for m in found["memory_bytes"] if who in m] for who in ("superlink", "app")
    }
    spread = ", ".join(
        f"{megabytes(min(of))} to {megabytes(max(of))} MB ({label})"
        for label, of in (("SuperLink", memory["superlink"]), ("app", memory["app"]))
        if of
    )
    done = ", ".join(f"{kind} {count}" for kind, count in found["done_to_sites"].items())
    body = [
        ["rounds played, lost", f"{found['rounds_played']}, **{found['lost_rounds']}**"],
        ["done to sites", done],
        ["answers taken", f"{found['answers_taken']:,}"],
        ["seconds a round", f"{found['round_seconds']['median']:.0f} (median)"],
        ["resident memory", spread],
        ["largest difference to a simulation", f"{found['distance_to_simulation']:.1e}"],
    ]
    return rows([f"{found['seconds'] / 60:.0f} minutes", found["task"]], body) + made_by(found)


def parity(name: str) -> str:
    report = read(name)
    found = report["rows"]
    worst = max(found, key=lambda r: r.get("apart", 0.0))
    passed, methods = sum(r["passed"] for r in found), len({r["method"] for r in found})
    ways, networks = ({r[k] for r in found} for k in ("way", "network"))
    return (
        f"{methods} methods on {len(networks)} networks "
        f"({', '.join(sorted(ways))}), and FedAvg with DP-SGD: {passed} of {len(found)} cases "
        f"within {report['limit']:g}; the largest difference is {worst['apart']:.1e} "
        f"({worst['method']})." + made_by(report)
    )


def _cell(cell: dict[str, Any] | None, wanted: int) -> str:
    if cell is None:
        return "–"
    paper = cell["paper"]["text"] if cell["paper"] else "–"
    if not has_number(cell):
        failed = "diverged" if "diverged" in cell.get("reason", "") else "failed"
        return f"{failed if cell['status'] == 'failed' else 'not run'} / {paper}"
    return f"{ours(cell, wanted)} {SIGNS[beside_paper(cell)]}".rstrip() + f" / {paper}"


def reproduction(name: str) -> str:
    report = read(f"reproduction/{name}")
    cells, columns = by_place(report), report["columns"]
    wanted = report["seeds"]
    body = [[row, *(_cell(cells.get((row, c)), wanted) for c in columns)] for row in report["rows"]]
    tau = "; ".join(f"{name} {order(report, name)}" for name in report["tau"])
    scale = f" {report['scale']}." if report["scale"] else ""
    table = rows([f"{report['experiment']}, ours / paper", *columns], body)
    runs = [seed for cell in report["cells"] for seed in cell["seeds"]]
    spent = f" {len(runs)} runs, {sum(seed['seconds'] for seed in runs) / 3600:.1f} h in all."
    ends = f" By validation rows, {ends}." if (ends := ends_of_training(report)) else ""
    return f"{table}\n\nKendall's τ: {tau}.{scale}{ends}{spent}" + made_by(report)


def paper_claims(name: str) -> str:
    """Statements of the papers' tables, judged by the runs of `results/reproduction`."""
    body = [
        [
            f"{j.ours} is above {j.other}", j.column, f"{j.papers:+.1f}",
            f"{j.mean:+.1f} ({j.low:+.1f} to {j.high:+.1f})", j.units, f"**{j.answer}**",
        ]
        for j in judged()
        if j.paper == name
    ]  # fmt: skip
    header = ["statement", "column", "the paper's, points", "ours, with 95 % interval", "over", ""]
    return rows(header, body)


def overshoot(name: str) -> str:
    report = read(name)
    settings = list(dict.fromkeys(run["setting"] for run in report["runs"]))
    batches = [m["batches"] for m in report["runs"][0]["moments"]]
    body = []
    for setting in settings:
        runs = [run["moments"] for run in report["runs"] if run["setting"] == setting]
        cells = []
        for i in range(len(batches)):
            each = [[run[i][who]["accuracy"] for run in runs] for who in ("w", "theta")]
            cells.append(" / ".join(f"{per_cent(min(v))}–{per_cent(max(v))}" for v in each))
        sharp = [moment["curvature"] for run in runs for moment in run]
        body.append([setting, *cells, f"{min(sharp):.0f}–{max(sharp):.0f}"])
    header = ["w / θ, accuracy %", *(f"{b:,} batches" for b in batches), "largest curvature"]
    return rows(header, body) + made_by(report)


def jobs(name: str) -> str:
    """Whole jobs: FedTailor's seconds, where they go, and the loop's."""
    report, body = read(name), []
    alone = not any("loop" in row for row in report["rows"])  # FedTailor's side, nothing else
    for row in sorted(report["rows"], key=lambda row: row["name"]):
        cold = row["cold"]
        asked = f"{row['at_least']:.0f}×" if row["at_least"] else f"{row['at_most']:.0f} s"
        parts = [
            f"{cold[k]:.1f}" for k in ("preparing_seconds", "training_seconds", "rest_seconds")
        ]
        warm = sorted(found["seconds"] for found in row["warm"])
        again = f"{warm[0]:.1f}" if warm else "–"
        if alone:
            body.append([row["name"], f"{cold['seconds']:.1f}", *parts, again])
            continue
        loop = row["loop"]
        times = [f"{loop['seconds']:.0f}", f"{cold['seconds']:.1f}", f"**{row['ratio']:.1f}×**"]
        ratio = f"{loop['seconds'] / warm[0]:.1f}×" if warm else "–"
        body.append([row["name"], *times, asked, *parts, again, ratio])
    where = ["preparing", "training", "the rest", "again, s"]
    header = ["job", "FedTailor, s", *where]
    if not alone:
        header = ["job", "loop, s", "FedTailor, s", "ratio", "asked for", *where, "ratio"]
    return rows(header, body) + made_by(report)


# methods whose defaults were changed by `defaults.py`: what they had, and what they have now
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pfedla": ({"hn_lr": 0.005}, {"hn_lr": 0.5}),
    "heurpfedla": ({"hn_lr": 0.005}, {"hn_lr": 0.5}),
    "pfedme": ({"eta_p": 0.09, "eta": 0.005}, {"eta_p": 0.03, "eta": 0.05}),
    "pfedhn": ({"lr": 0.01}, {"lr": 0.1}),
    "plgu-ghn": ({"lr": 0.01}, {"lr": 0.1}),
    "apple": ({"eta2": 0.001}, {"eta2": 0.01}),
    "fedrep": ({"head_epochs": 10}, {"head_epochs": 3}),
    "cfl": ({"e2": 1.6}, {"e2": 0.2}),
    "moon": ({"mu": 5}, {"mu": 0.1}),
}


# of the methods that came later: what was better in the worst of four worlds
PERHAPS_BETTER: dict[str, dict[str, Any]] = {
    "feddyn": {"alpha": 1.0},
    "term": {"t": 5.0},
    "fedgh": {"server_lr": 1.0},
    "fedgen": {"b": 2.154},
    "pfedgraph": {"alpha": 0.2321},
    "pfedsim": {"warmup": 0.9},
    "fedcp": {"lam": 0.5},
}


def _validated(
    report: dict[str, Any], worlds: list[str], method: str, setting: dict[str, Any]
) -> list[str]:
    """Validation accuracy of a setting in every world; in brackets how many seeds."""
    mine = [r for r in report["rows"] if (r["method"], r["setting"]) == (method, setting)]
    out = []
    for world in worlds:
        found = [r.get("mean") for r in mine if r["world"] == world]
        known = [100 * v for v in found if v is not None]
        told = f"{np.mean(known):.1f}" if known else "diverged" if found else "–"
        out.append(f"{told} ({len(known)})" if len(known) > 1 else told)
    return out


def _in_words(setting: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in setting.items())


def defaults(name: str) -> str:
    """Validation accuracy with the defaults of before and of now, in every world."""
    report = read(name)
    worlds = ["digits", "digits-20", "digits-mild", "wisdm", "heart", "mnist", "cifar10"]
    body = [[name, *_validated(report, worlds, name, {})] for name in ("local", "fedavg")]
    for method, (before, now) in CHANGED.items():
        for setting, at in ((before, {}), (now, now)):
            told = f"{method}, {_in_words(setting)}"
            body.append([told, *_validated(report, worlds, method, at)])
    return rows(["", *worlds], body) + made_by(report)


def newer_defaults(name: str) -> str:
    """The same of methods that came later: their defaults, and what may be better ones."""
    report = read(name)
    worlds = ["digits", "digits-20", "digits-mild", "heart", "wisdm", "mnist"]
    body = []
    for method, other in PERHAPS_BETTER.items():
        for setting in ({}, other):
            told = f"{method}, {_in_words(setting) or 'as it is'}"
            body.append([told, *_validated(report, worlds, method, setting)])
    return rows(["", *worlds], body) + made_by(report)


def side_by_side(name: str) -> str:
    """A round of one run, and of several side by side, against it."""
    report, body = read(name), []
    for row in report["rows"]:
        parts, kinds = [], [kind for kind in row if kind[0].isdigit()]
        for kind in kinds:
            found = row[kind]
            seconds, preparing = found["seconds"], found["preparing_seconds"]
            parts += [f"**{found['ratio']:.1f}×** ({seconds:.3f} s)", f"{preparing:.0f}"]
        one = row["one"]
        option = f" {row['option']}" if "option" in row else ""
        what = (
            f"{row['method']}{option}, {row['case'].replace('-', ', ')}, {row['clients']} clients"
        )
        body.append([what, f"{one['seconds']:.3f}", f"{one['preparing_seconds']:.0f}", *parts])
    header = ["runs", "one run's round, s", "preparing, s"]
    for kind in kinds:
        header += [kind, "preparing, s"]
    where = f"{report['device']} ({report['hardware']}, {report['threads']} threads)"
    load = f" Load of the machine in the last minute: {report['load'][0]:.1f}."
    return rows(header, body) + made_by(report | {"device": where}) + load


def _with_interval(cell: list[Any]) -> str:
    return f"{100 * cell[0]:.0f}" + ("" if cell[1] is None else f" ± {100 * cell[1]:.0f}")


def attacks(name: str) -> str:
    """A table for each method: honest clients' mean, the worst of them, and the back door."""
    report = read(name)
    found: dict[tuple[str, str, str], dict[str, Any]] = {
        (row["method"], row["attack"], row["defence"]): row for row in report["rows"]
    }
    methods, kinds, defences = (list(dict.fromkeys(key[i] for key in found)) for i in range(3))
    out = []
    for method in methods:
        body = []
        for defence in defences:
            cells = [found[method, kind, defence] for kind in kinds]
            shown = [f"{_with_interval(c['mean'])} / {100 * c['worst'][0]:.0f}" for c in cells]
            lowest = f"{100 * cells[0]['bottom5']:.0f}"
            doors = [c["triggered"] for c in cells if c["triggered"]]
            body.append([defence, *shown, lowest, *(_with_interval(door) for door in doors)])
        header = [f"{method}, mean / worst %", *kinds, "bottom 5 %, nobody"]
        header += ["back door opens, %"] * ("backdoor" in kinds)
        out.append(rows(header, body))
    told = []
    for kind in kinds:
        share = [[r["odd"][who] for r in report["rows"] if r["attack"] == kind] for who in WHO]
        hostile, honest = (100 * sum(v) / len(v) for v in share)
        told.append([kind, "–" if kind == "nobody" else f"{hostile:.0f}", f"{honest:.1f}"])
    out.append(rows(["uploads that stand out, %", "of hostile", "of honest clients"], told))
    how = (
        f"{report['clients']} clients of digits, {report['hostile']} hostile, "
        f"{report['rounds']} rounds, {report['seeds']} seeds; ± half of a 95 % interval over "
        f"seeds; max-norm is {report['max_norm']:g}."
    )
    return "\n\n".join(out) + f"\n\n{how}" + made_by(report)


def _part(name: str, part: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    report = read(name)
    return report, [r for r in report["rows"] if r["part"] == part]


def _shape(row: dict[str, Any]) -> list[str]:
    s = row["setting"]
    strong = " (strong)" if s["noise"] > 0.1 else ""
    return [s["kind"] + strong, f"{s['sites']}, {s['rows']}, {s['repeats']}"]


def _with_error(found: dict[str, float] | None) -> str:
    return f"{per_cent(found['share'])} ± {per_cent(found['error'])}" if found else "–"


def nothing(name: str) -> str:
    body = []
    report, found = _part(name, "nothing")
    kinds = list(dict.fromkeys(r["setting"]["kind"] for r in found))
    for r in [*found, *_part(name, "ranked")[1]]:
        false = [r["answers"][a]["share"] for a in ("helps", "harms")]
        told = {
            "share": sum(false),
            "error": (sum(false) * (1 - sum(false)) / r["federations"]) ** 0.5,
        }
        body.append(
            [
                *_shape(r),
                r["setting"]["metric"],
                f"{r['federations']}",
                *(per_cent(share) for share in false),
                f"**{_with_error(told)}**",
                per_cent(r["answers"]["no difference"]["share"]),
                per_cent(r["p_clients_below_level"]["share"]),
                per_cent(r["p_rows_below_level"]["share"]),
                f"{100 * r['mean_gain']:+.2f}",
            ]
        )
    for kind in kinds:
        some = [r for r in found if r["setting"]["kind"] == kind]
        n = sum(r["federations"] for r in some)
        each = [
            sum(r["answers"][a]["share"] * r["federations"] for r in some) / n
            for a in ("helps", "harms")
        ]
        pooled = {"share": sum(each), "error": (sum(each) * (1 - sum(each)) / n) ** 0.5}
        shown = [*(per_cent(share) for share in each), f"**{_with_error(pooled)}**"]
        body.append([f"all {kind}", "", "accuracy", f"{n}", *shown, "", "", "", ""])
    header = ["kind", "sites, rows, repeats", "metric", "federations", "helps %", "harms %"]
    header += ["false answers %", "no difference %", "p of clients < 0.05, %", "of rows, %"]
    return rows([*header, "mean gain, points"], body) + made_by(report)


def covered(name: str) -> str:
    report, found = _part(name, "covered")
    body = []
    for r in found:
        cover = r["coverage"]
        like = cover.get("both")
        width = [cover["rows"]["median_width"], like and like["median_width"]]
        body.append(
            [
                *_shape(r),
                f"{100 * r['true_gain']:+.1f}",
                _with_error(cover["rows"]["these sites"]),
                _with_error(like and like["sites like these"]),
                *("–" if w is None else f"{100 * w:.1f}" for w in width),
            ]
        )
    for label, some in (
        ("all, one repeat", [r for r in found if r["setting"]["repeats"] == 1]),
        ("all, more repeats", [r for r in found if r["setting"]["repeats"] > 1]),
    ):
        pooled = []
        for way, who in (("rows", "these sites"), ("both", "sites like these")):
            each = [r["coverage"][way][who]["share"] for r in some if way in r["coverage"]]
            pooled.append(f"**{per_cent(sum(each) / len(each))}**")
        body.append([label, "", "", *pooled, "", ""])
    header = ["kind", "sites, rows, repeats", "true gain, points", "these sites, %"]
    header += ["sites like these, %", "width, points", "width, points"]
    return rows(header, body) + made_by(report)


def tried(name: str) -> str:
    report, found = _part(name, "tried")
    names = list(dict.fromkeys(n for r in found for n in r["coverage"]))
    header = ["these / like these, %", *(", ".join(_shape(r)) for r in found)]
    body = []
    for way in names:
        cells = []
        for r in found:
            cover = r["coverage"].get(way)
            both = ("these sites", "sites like these")
            cells.append(
                " / ".join(per_cent(cover[who]["share"]) for who in both) if cover else "–"
            )
        body.append([way, *cells])
    return rows(header, body) + made_by(report)


def power(name: str) -> str:
    report, found = _part(name, "power")
    body = [
        [
            _shape(r)[1],
            f"{100 * r['true_gain']:+.1f}",
            r["speaks_for"],
            f"**{_with_error(r['answers']['helps'])}**",
            per_cent(r["answers"]["harms"]["share"]),
            per_cent(r["answers"]["cannot tell"]["share"]),
        ]
        for r in found
    ]
    header = ["sites, rows, repeats", "true gain, points", "speaks for", "helps %", "harms %"]
    return rows([*header, "cannot tell %"], body) + made_by(report)


def hospitals(name: str) -> str:
    """The benchmark's tables, one after the other; published numbers in brackets."""
    report = read(name)
    out = []
    for table in report["tables"].values():
        body = []
        for row, cells in table["rows"].items():
            told = []
            for column in table["columns"]:
                cell = cells.get(column, {})
                mean, paper = cell.get("mean"), cell.get("published")
                text = "–" if mean is None else f"{mean:.1f}"
                told.append(text if paper is None else f"{text} ({paper:.1f})")
            body.append([row, *told])
        out.append(f"*{table['title']}, mean of {table['seeds']} seeds*\n\n")
        out.append(rows(["row", *table["columns"]], body) + "\n\n")
    return "".join(out).rstrip() + made_by(report)


def judged_runs(name: str) -> str:
    report = read(name)
    body = []
    for kind in report["kinds"]:
        count, answers = kind["federations"], kind["answers"]
        share = lambda answer, a=answers, n=count: f"{100 * a.get(answer, 0) / n:.1f}"
        body.append(
            [
                kind["kind"],
                str(count),
                f"{100 * kind['mean_gain']:+.1f}",
                *(share(answer) for answer in ("helps", "harms", "no difference", "cannot tell")),
                f"{100 * kind['intervals_that_cover']:.1f}",
                f"{100 * kind['rule_of_0_1_says_helps']:.0f}",
            ]
        )
    header = [
        "kind", "federations", "mean gain, points", "helps %", "harms %", "no difference %",
        "cannot tell %", "intervals that cover %", "0.1 said helps %",
    ]  # fmt: skip
    return rows(header, body) + made_by(report)


def judged_singles(name: str) -> str:
    report = read(name)
    body = []
    for kind in report["kinds"]:
        told = kind["clients"].get("helps", 0) + kind["clients"].get("harms", 0)
        of_all = f"{100 * kind['helps_or_harms']:.1f}"
        sites = kind["federations"] * report["sites"]
        share = [f"{100 * told / sites:.1f}", f"{100 * kind['any_client']:.1f}"]
        body.append([kind["kind"], str(kind["federations"]), of_all, *share])
    header = [
        "with", "federations", "helps or harms all, %", "one site, % of sites",
        "any site, % of federations",
    ]  # fmt: skip
    return rows(header, body) + made_by(report)


def audited(name: str) -> str:
    report = read(name)
    body = []
    for r in report["rows"]:
        cases = r["inversion"]
        mean = lambda key, c=cases: sum(one["psnr"][key] for one in c) / len(c)
        cost = [one["dp"]["epsilon"] for one in cases if one["dp"]["epsilon"] is not None]
        told = {m["model"]: m["loss"]["auc"] for m in r["membership"] if "loss" in m}
        auc = [
            "{value:.2f} ({0:.2f} to {1:.2f})".format(*told[k]["interval"], **told[k])
            for k in ("personal", "upload")
        ]
        labels = sum(one["labels"]["right"] * one["rows"] for one in cases)
        rows_in_all = sum(one["rows"] for one in cases)
        body.append(
            [
                r["setting"],
                f"**{mean('recovered'):.1f}**",
                f"{mean('nearest'):.1f}",
                f"{sum(one['nearer'] for one in cases)} of {rows_in_all}",
                f"{labels:.0f} of {rows_in_all}",
                f"{max(cost):.1f}" if cost else "–",
                *auc,
                per_cent(r["accuracy"]),
            ]
        )
    header = [
        "uploads", "recovered, dB", "nearest other, dB", "rows shown", "labels told",
        "ε of an upload", "AUC, final model", "AUC, uploads", "accuracy of the run, %",
    ]  # fmt: skip
    return rows(header, body) + made_by(report)


def leaderboard(name: str) -> str:
    """All methods of a world by rank, those that failed, and those that were not played yet."""
    report = ranking.read(name)
    if report is None:
        return f"Not run yet: `{ranking.command(name)}`."
    found = ranking.ranked(report)
    table = rows(ranking.HEADER, ranking.body(report, found))
    left = ranking.left_of(report)
    told = f"Not run yet ({len(left)}): {', '.join(left)}.\n\n" if left else ""
    shown = (ranking.PICTURES / f"leaderboard-{name}.png").exists()
    picture = f"![Methods against training alone](img/leaderboard-{name}.png)\n\n" if shown else ""
    said = f"{ranking.summary(found)}\n\n" if found else ""
    return f"{said}{picture}{table}\n\n{told}{ranking.spent(report)}"


def leaderboards(name: str) -> str:
    """What holds in all worlds, in a sentence and a picture."""
    found = list(ranking.all_worlds().values())
    picture = f"![Methods against training alone, in each division](img/{name}.png)"
    return f"{ranking.overview(found)}\n\n{picture}" if found else "Not run yet."


TABLES: dict[str, Callable[[str], str]] = {
    "audited": audited,
    "judged": judged_runs,
    "judged_singles": judged_singles,
    "hospitals": hospitals,
    "nothing": nothing,
    "covered": covered,
    "tried": tried,
    "power": power,
    "comparison": comparison,
    "speed": speed,
    "beside_fedavg": beside_fedavg,
    "before_after": before_after,
    "evaluation": evaluation,
    "growth": growth,
    "profile": profile,
    "cifar": cifar,
    "claims": claims,
    "scale": scale,
    "soak": soak,
    "parity": parity,
    "reproduction": reproduction,
    "overshoot": overshoot,
    "paper_claims": paper_claims,
    "attacks": attacks,
    "jobs": jobs,
    "defaults": defaults,
    "newer_defaults": newer_defaults,
    "side_by_side": side_by_side,
    "ten": same_ten,
    "leaderboard": leaderboard,
    "leaderboards": leaderboards,
}
MARK = re.compile(r"(<!-- table: (\w+) ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m[2]](m[3])}\n{m[4]}", text)


def main() -> None:
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        if filled(text) != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(filled(text), encoding="utf-8")
    if stale:
        print("not up to date:" if "--check" in sys.argv else "written:", ", ".join(stale))
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()

"""Why pFedMe with its authors' settings for MNIST does not learn on CIFAR-10, in plain PyTorch.

    python benchmarks/overshoot.py --data-dir DATA --out benchmarks/results/overshoot.json

One client with two classes trains alone, on the network of FedFomo's experiments, with nothing of
FedTailor's: by SGD, and by pFedMe's two loops as they are printed. An inner
step multiplies what is left to go by 1 − η_p (λ + h) in a direction where the loss curves by h, so
it overshoots where h is above 2/η_p − λ; the largest h on the way is measured, too.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn.functional import cross_entropy

CLASSES, ROWS, BATCH = (3, 8), 4000, 50  # cats and ships
MOMENTS = (270, 540, 1440)  # batches; a client of FedFomo's Table 1 has 270 in a round
Params = dict[str, Tensor]


class Setting(NamedTuple):
    """How w is trained; without λ by SGD."""

    name: str
    lam: float = 0.0
    eta_p: float = 0.0
    eta: float = 0.005
    warm_start: bool = False
    steps: int = 5


SETTINGS = (
    Setting("SGD, rate 0.005"),
    Setting("pFedMe, η_p = 0.09", 15.0, 0.09),
    Setting("pFedMe, η_p = 0.09, θ goes on from the last batch", 15.0, 0.09, warm_start=True),
    Setting("pFedMe, η_p = 0.03", 15.0, 0.03),
)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def rows_of(data_dir: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(training images, their labels, test images, their labels) of the two classes."""
    import numpy as np

    with np.load(data_dir / "cifar10.npz", allow_pickle=False) as file:
        found = {k: file[k] for k in ("x_train", "y_train", "x_test", "y_test")}
    chosen: list[Tensor] = []
    for part in ("train", "test"):
        keep = np.isin(found[f"y_{part}"], CLASSES).nonzero()[0][:ROWS]
        images = torch.tensor(found[f"x_{part}"][keep]).float().permute(0, 3, 1, 2) / 255
        chosen += [images, torch.tensor(found[f"y_{part}"][keep]).long()]
    mean, std = (f(chosen[0], dim=(0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
    return (chosen[0] - mean) / std, chosen[1], (chosen[2] - mean) / std, chosen[3]


def curvature(loss: Any, at: Params, steps: int = 20) -> float:
    """The largest eigenvalue of the Hessian, by power iteration."""
    way = {k: torch.randn_like(v) for k, v in at.items()}
    found = 0.0
    for _ in range(steps):
        size = sum(v.square().sum() for v in way.values()) ** 0.5
        way = {k: v / size for k, v in way.items()}
        after = jvp(grad(loss), (at,), (way,))[1]
        found = float(sum((after[k] * way[k]).sum() for k in way))
        way = after
    return found


def train(setting: Setting, seed: int, data_dir: str) -> dict[str, Any]:
    """Accuracy and loss of w and θ, and the curvature at w, after some numbers of batches."""
    torch.set_num_threads(1)
    images, labels, test, truth = rows_of(Path(data_dir))
    net = network(seed)
    draw = torch.Generator().manual_seed(seed)
    w: Params = {k: v.detach() for k, v in net.named_parameters()}
    theta, moments = w, []

    def loss_on(x: Tensor, y: Tensor) -> Any:
        return lambda params: cross_entropy(functional_call(net, params, (x,)), y)

    def score(params: Params) -> dict[str, float]:
        with torch.no_grad():
            out = functional_call(net, params, (test,))
        right = float((out.argmax(1) == truth).float().mean())
        return {"accuracy": round(right, 4), "loss": round(float(cross_entropy(out, truth)), 4)}

    for number in range(1, MOMENTS[-1] + 1):
        chosen = torch.randint(len(images), (BATCH,), generator=draw)
        slope = grad(loss_on(images[chosen], labels[chosen]))
        if not setting.lam:
            gradient = slope(w)
            theta = w = {k: v - setting.eta * gradient[k] for k, v in w.items()}
        else:
            theta = theta if setting.warm_start else w
            for _ in range(setting.steps):
                gradient = slope(theta)
                theta = {
                    k: v - setting.eta_p * (gradient[k] + setting.lam * (v - w[k]))
                    for k, v in theta.items()
                }
            w = {k: v - setting.eta * setting.lam * (v - theta[k]) for k, v in w.items()}
        if number in MOMENTS:
            sharp = curvature(loss_on(images[:500], labels[:500]), w)
            found = {"batches": number, "w": score(w), "theta": score(theta)}
            moments.append(found | {"curvature": round(sharp, 2)})
    return {"setting": setting.name, "seed": seed, "moments": moments}


def main() -> None:
    from speed import commit

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="where cifar10.npz lies")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if not (args.data_dir / "cifar10.npz").is_file():
        parser.error(f"no cifar10.npz in '{args.data_dir}'")
    asked = [(s, seed) for seed in range(args.seeds) for s in SETTINGS]
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(train, s, seed, str(args.data_dir)) for s, seed in asked]
        found = []
        for job in jobs:
            found.append(job.result())
            last = found[-1]["moments"][-1]
            print(found[-1]["setting"], found[-1]["seed"], last, file=sys.stderr, flush=True)
    words = ["python", "benchmarks/overshoot.py", "--data-dir", "DATA", "--seeds", str(args.seeds)]
    report = {
        "command": shlex.join(words),
        "commit": commit(),
        "device": f"cpu ({platform.machine()}, 2 processes of one thread)",
        "classes": CLASSES,
        "rows": ROWS,
        "batch": BATCH,
        "runs": found,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

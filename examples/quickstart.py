"""Does federation help these clients? Twenty of them, with scikit-learn's digits, in 30 lines.

python examples/quickstart.py
"""

import fedtailor

# Each client holds digits of its own kind: a few classes much more often than the others.
setting = {"data": "digits", "clients": 20, "partition": "dirichlet:0.1", "model": "mlp"}

# One method: every client ends with a model of its own.
result = fedtailor.run("fedala", rounds=10, **setting)
print(
    f"FedALA: {result['accuracy']['mean']:.1%} on average, worst {result['accuracy']['worst']:.1%}"
)
print(f"sent {result['bytes']['up'] / 1e6:.1f} MB up, {result['bytes']['down'] / 1e6:.1f} MB down")

# Several methods on the same data, from the same start, measured against training alone.
summary = fedtailor.compare(
    "fedavg",
    "ditto",
    "fedala",
    rounds=10,
    options={"ditto.lam": 0.5},  # a hyper-parameter of one method
    **setting,
)
for line in summary["verdict"]:
    print("-", line)

# Who gains most by FedALA, and who would rather stay alone?
gains = sorted(summary["table"]["fedala"]["gain"].items(), key=lambda item: item[1])
print("least:", gains[0], "most:", gains[-1])

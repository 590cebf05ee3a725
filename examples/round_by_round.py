"""Rounds one at a time, as in a notebook: look at server and clients after each.

python examples/round_by_round.py
"""

import fedtailor

for report in fedtailor.simulate("fedala", model="mlp", clients=5, rounds=3):
    norm = sum(leaf.square().sum() for leaf in report.server["params"].values()).sqrt()
    print(f"round {report.round}: accuracy {report.score:.3f}, server's norm {norm:.2f}")

state = report.state("client-0")  # what this client keeps to itself
print(sorted(state))
network = report.model("client-0")  # its personal model, an ordinary nn.Module
print(sum(p.numel() for p in network.parameters()), "parameters")

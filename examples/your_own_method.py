"""A method of your own: 40 lines. It is run, checked and compared like any other.

python examples/your_own_method.py

`halfway`: a client keeps its own model and each round moves it half of the way to the server's
before it trains. What a client sends, keeps and uses is all said in functions of one client.
"""

import fedtailor
from fedtailor.core import tree
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.options import Share
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedavg


def halfway(task, *, pull: Share = 0.5, recipe: Recipe = Recipe()) -> Method:
    """Each round a client moves part of the way to the server's model, then trains.

        w_k ← SGD(w_k + pull (w − w_k); E),   w ← Σ_k Ω_k w_k

    Args:
      pull: how far; 1 is FedAvg, 0 is training alone.
      recipe: how a client trains in a round.

    Reference: this example.
    """

    def start(msg, initial, key):
        return {"own": msg["params"]}

    def mixed(msg, state):
        return tree.lerp(state["own"], msg["params"], pull)

    def client(msg, state, data, turn):
        own = fit(task, mixed(msg, state), data, turn, recipe)
        return Outcome({"own": own}, Upload({"params": own}, by_size(data, "data")), own)

    def personal(msg, state, data, turn):
        return mixed(msg, state)

    return fedavg(task)._replace(start=start, client=client, personal=personal)


if __name__ == "__main__":
    for finding in fedtailor.check_method(halfway):
        print("holds " if finding.passed else "BROKEN", finding.check, finding.detail)
        assert finding.passed
    me = (
        "your_own_method:halfway"  # the same on the command line: fedtailor run your_own_method:...
    )
    summary = fedtailor.compare(me, "fedavg", data="digits", model="mlp", rounds=10)
    for line in summary["verdict"]:
        print("-", line)

"""pMixFed: global and local models mixed block by block, adaptively."""

from __future__ import annotations

from typing import Literal

from fedtailor.core import rng
from fedtailor.core.method import Method
from fedtailor.core.options import Above, Share, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.mixing import Mixer, Policy, matched, with_mixup
from fedtailor.methods.parts.partial import Phase, all_names, partial


def pmixfed(
    task: Task,
    *,
    mix_policy: Policy = "sigmoid",
    use_broadcast_mix: bool = True,
    use_aggregation_mix: bool = True,
    mu0: Share = 0.0,
    mu_start: Share = 0.5,
    mu_end: Share = 0.0,
    alpha: Above = 1.0,
    agg_ratio: bool = False,
    renormalise: bool = False,
    acc_source: Literal["val", "test"] = "val",
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    whole: Task | None = None,
) -> Method:
    """Deep blocks stay the client's own, shallow ones follow the server, with a ramp between.

        μ(δ, A) = σ(δ (1 − A²)),  δ = t/T
        download     λ_b[i] = clip(μ_k (n − i)),  A = accuracy of L_k over the mean one of G
                     L_k ← SGD(λ_b G + (1 − λ_b) L_k; E)
        aggregation  λ_a[i] = clip(1 − i μ_G),    A = mean accuracy of G
                     G ← Σ_k Ω_k (λ_a G + (1 − λ_a) L_k)

    for blocks i = 1 (input) .. n (head). λ is the global model's share in both stages. Learnt on
    the server: G. Kept by the client: L_k, whole. Tested with the mixed model.

    Args:
      mix_policy: where degrees come from: `sigmoid` (the paper's pMixFed: μ as above), `dynamic` (μ
        constant), `gradual` (μ linear in the round), `random` (every degree from Beta(α, α), no
        ramp), `random_adaptive` (the same with α = 0.1, 100, 10 in the thirds of the run).
      use_broadcast_mix: mix at download; off takes the global model as it is.
      use_aggregation_mix: mix at aggregation; off averages plainly.
      mu0: the constant μ of `dynamic`; 0 takes 1/(n − 1).
      mu_start: μ of `gradual` in round 0.
      mu_end: μ of `gradual` in the last round.
      alpha: α of `random`; the paper tries 0.1, 0.5, 1, 2, 5.
      agg_ratio: at aggregation A is mean local over global accuracy (the paper's appendix).
      renormalise: a block that only some clients have is averaged over those alone; else the
        others vote for its old value.
      acc_source: rows that accuracies are measured on: `val`, or `test` as the paper does, which
        leaks test data into training; the result is then marked as leaking.
      weighting: a client's weight in the mean: `data` (Eq. 8) or `uniform` (Algorithm 1).
      recipe: how a client trains in a round (paper: Adam, 0.001, 5 epochs, batches of 32).
      whole: the server's network, where clients have networks of different depths.

    Deviations: Acc² − 1 with offset 1 and exponent 2 (text and appendix contradict each other in
    words). λ falls from input to head as in Eq. 6 to 8 (three sentences say the opposite). Blocks
    count from 1, so the head is frozen at download and the input block does learn. Accuracies come
    from validation rows (paper: test rows). Mixing is once a round (Algorithm 2: every epoch). The
    μ of `dynamic` and the line of `gradual` are not given in the paper: choices. A missing block
    keeps its old value where the paper's λ = 0 would shrink it. L_k begins as the G that client k
    receives first, which is G⁰ for those drawn in round 0 (the paper is silent): so clients that
    are drawn late, join later or are held out all begin with what the others have learnt.

    Reference: Saadati et al., "pMixFed: Efficient Personalized Federated Learning through Adaptive
    Layer-Wise Mixup", https://arxiv.org/abs/2501.11002
    """
    names = {name: name for name in all_names(task)}
    if whole is not None:
        names = matched(task, whole, lambda t: t.init(rng.key(0)))
    own = [name for name in all_names(task) if name not in names]
    phases = [Phase(all_names(task), recipe.epochs)]
    host = partial(task, own, phases, recipe=recipe, weighting=weighting, on_server=names)
    mixer = Mixer(
        mix_policy=mix_policy,
        use_broadcast_mix=use_broadcast_mix,
        use_aggregation_mix=use_aggregation_mix,
        mu0=mu0,
        mu_start=mu_start,
        mu_end=mu_end,
        alpha=alpha,
        agg_ratio=agg_ratio,
        renormalise=renormalise,
    )
    return with_mixup(host, task, mixer, names)

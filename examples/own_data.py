"""Your own rows, straight from memory: a table per client, or arrays per client.

python examples/own_data.py
"""

import numpy as np

import fedtailor


def ward(shift: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """120 patients of one hospital: three measurements, and whether they came back."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(120, 3)) + shift
    return x, (x[:, 0] + 0.5 * x[:, 1] > shift).astype(int)


hospitals = {"north": ward(0.0, 1), "south": ward(1.0, 2), "west": ward(-1.0, 3)}
result = fedtailor.run("ditto", data=hospitals, model="mlp", rounds=3)
for client, accuracy in result["per_client"].items():
    print(f"{client:6} {accuracy:.3f}")

# A DataFrame with a column that names the client does as well (pip install pandas):
#   fedtailor.run("ditto", data=frame, label="came_back", client_column="hospital")

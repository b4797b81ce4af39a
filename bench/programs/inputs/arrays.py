"""Sparse matrix times vector by numpy's gather, sums over groups, and a sort: a data analysis."""

import sys

import numpy as np

seed, rows, rounds = (int(word) for word in sys.argv[1:4])
random = np.random.default_rng(seed)
columns = (rows * random.random(12 * rows, dtype=np.float32) ** 3).astype(np.int32)
values = random.random(12 * rows, dtype=np.float32)
x = np.ones(rows)
for _ in range(rounds):
    gathered = x[columns]
    gathered *= values
    x = gathered.reshape(rows, 12).sum(axis=1)
    x /= x.max()
print(f"arrays {x.sum():.6f}")

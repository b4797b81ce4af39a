"""Sums by group, the way data frames make them: random keys and values in arrays, a table of sums
that is filled in the order of the keys, then looked up by other keys."""

import sys

import numpy

seed, groups, rows, rounds = (int(a) for a in sys.argv[1:5])
draw = numpy.random.default_rng(seed)
keys = draw.integers(0, groups, rows, dtype=numpy.int32)
values = draw.random(rows)
total = 0.0
for _ in range(rounds):
    sums = numpy.bincount(keys, weights=values, minlength=groups)
    total += float(sums[keys[::-1]].mean())
    values = values[::-1] + 1.0
print(f"groups {total:.6f}")

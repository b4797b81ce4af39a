"""Jacobi's iteration on a sparse system: the unknowns of each equation are gathered, weighted,
summed and taken from the right-hand side, and the solution is an array of its own at each step."""

import sys

import numpy

seed, unknowns, terms, steps = (int(word) for word in sys.argv[1:5])
draw = numpy.random.default_rng(seed)
columns = draw.integers(0, unknowns, (unknowns, terms))
weights = draw.random((unknowns, terms), dtype=numpy.float32) / terms
right = draw.random(unknowns)
solution = numpy.zeros(unknowns)
for _ in range(steps):
    moved = right - (weights * solution[columns]).sum(axis=1)
    change = float(abs(moved - solution).max())
    solution = moved
print(f"jacobi {solution.sum():.6f} {change:.6f}")

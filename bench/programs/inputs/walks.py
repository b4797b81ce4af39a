"""Random walks over a graph: all walkers take a step at a time along one of a few edges, and how
often each node was visited is counted."""

import sys

import numpy

seed, nodes, degree, walkers, steps = (int(word) for word in sys.argv[1:6])
draw = numpy.random.default_rng(seed)
targets = (nodes * draw.random((nodes, degree), dtype=numpy.float32) ** 2).astype(numpy.int32)
visits = numpy.zeros(nodes)
at = draw.integers(0, nodes, walkers)
for _ in range(steps):
    at = targets[at, draw.integers(0, degree, walkers, dtype=numpy.int8)]
    visits += numpy.bincount(at, minlength=nodes)
print(f"walks {visits.max():.0f} {at.sum()}")

"""HyPlacer's figure 5 (speedup over first touch, medium and large) from the simulator's results,
drawn.

Run the cells one after the other, in an editor that knows ``# %%`` or as a script:

    bench/hyplacer.sh --json hyplacer.json
    python python/examples/figure5.py hyplacer.json figure5.png
"""

# %% The runs, as bench/hyplacer.sh left them: one row a kernel, size and policy.
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

source, target = (sys.argv[1:] + ["hyplacer.json", "figure5.png"][len(sys.argv) - 1 :])[:2]
with open(source) as file:
    runs = pd.DataFrame(json.load(file)["figure5"])
table = runs.pivot(index=["kernel", "size"], columns="policy",
    values="speedup").drop(columns="default")
order = ["memm", "autonuma", "memos", "nimble", "hyplacer", "terrace"]
table = table[[p for p in order if p in table.columns]]
print(table.round(2))

# %% Means over the kernels, geometric as the paper's.
means = np.exp(np.log(table).groupby(level="size").mean())
print(means.round(2))

# %% The figure: a panel a size, a group of bars a kernel and one for the mean.
sizes = [s for s in ["M", "L"] if s in table.index.get_level_values("size")]
figure, panels = plt.subplots(1, len(sizes), figsize=(5.5 * len(sizes), 3.6), sharey=True,
    squeeze=False)
for panel, size in zip(panels[0], sizes):
    bars = pd.concat([table.xs(size, level="size"), means.loc[[size]].rename(index={size: "mean"})])
    bars.plot.bar(ax=panel, width=0.8, legend=size == sizes[0], rot=0)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_title({"M": "medium", "L": "large"}[size])
    panel.set_xlabel("")
    panel.set_ylabel("speedup over first touch")
figure.tight_layout()
figure.savefig(target, dpi=150)
print(f"drawn to {target}")

"""
Where to look next: Thompson sampling
=====================================

You look for the largest value of a function, and every look costs. Draw a function that the data allow, look where that
is largest, and begin again: this explores where little is known and settles where much is.
"""

import matplotlib.pyplot as plt
import torch

import lapwing as lw

# %%
# The function, and four looks to begin with.

torch.manual_seed(0)


def measured(x):
    return (torch.sin(3 * x) + 0.6 * torch.cos(7 * x) - 0.1 * x.square()).sum(1)


x = torch.tensor([[0.2], [1.5], [3.5], [4.6]], dtype=torch.float64)
kernel, likelihood = 1.0 * lw.gp.RBF(0.4), lw.Gaussian(1e4)
posterior = lw.GP(kernel, likelihood, mean="zero").fit((x, measured(x)))
bounds = torch.tensor([[0.0], [5.0]], dtype=torch.float64)

# %%
# Four rounds of three looks. ``thompson`` says where, by one drawn function a look (green); ``updated`` takes what was
# seen.

grid = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
fig, axes = plt.subplots(2, 2, figsize=(9, 5), layout="constrained", sharex=True, sharey=True)
for number, ax in enumerate(axes.flat):
    p = posterior.predict(grid)
    looks = lw.gp.thompson(posterior, bounds, batch=3, generator=number)
    lw.plots.plot_band(grid[:, 0], p.mean[:, 0], p.outputs.std[:, 0], ax=ax)
    ax.get_legend().remove()
    ax.plot(grid, measured(grid), ":", color="#D55E00")
    ax.plot(posterior.data.inputs, posterior.data.targets, "k.")
    for look in looks:
        ax.axvline(float(look), color="#009E73")
    ax.set(title=f"round {number + 1}", xlabel="", ylabel="")
    posterior = posterior.updated((looks, measured(looks)))
fig.supxlabel("input")
fig.supylabel("value")
plt.show()

# %%
# What was found, after sixteen values in all.

best = posterior.data.targets.max()
print(f"best value seen {float(best):.3f}, the largest there is {float(measured(grid).max()):.3f}")

"""
Diagonal, Kronecker, full
=========================

A structure says how the covariance of the weights is held. On a network small enough for the full one the others can be
seen beside it.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# A curve with a gap, and a network of one hidden layer.

torch.manual_seed(0)
x = torch.cat([-3 + 2 * torch.rand(30, 1), 0.5 + 2.5 * torch.rand(30, 1)]).double()
y = x.sin() + 0.1 * torch.randn(60, 1).double()
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-4)
for _ in range(600):
    optimiser.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()

# %%
# All three with the same prior and the same noise, those that the full one finds. So what differs is the structure
# alone.

tuned = lw.tune(lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, (x, y)))
structures = {"Diagonal": lw.Diagonal(), "KFAC": lw.KFAC(), "Full": lw.Full()}
posteriors = {
    name: lw.Laplace(tuned.likelihood, prior=tuned.prior, structure=structure).fit(model, (x, y))
    for name, structure in structures.items()
}

# %%
# The diagonal leaves out that weights make up for each other. Its band is too wide at the data, and too narrow far from
# them. KFAC keeps what the weights of one layer have in common; full keeps everything.

grid = torch.linspace(-4.5, 4.5, 200).double()
fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained", sharey=True)
for ax, (name, posterior) in zip(axes, posteriors.items(), strict=True):
    p = posterior.predict(grid[:, None])
    lw.plots.plot_band(grid, p.mean[:, 0], p.outputs.std[:, 0], ax=ax)
    ax.plot(x, y, "k.", markersize=3)
    if ax is not axes[0]:
        ax.get_legend().remove()
    ax.set(title=name, xlabel="input", ylabel="output" if ax is axes[0] else "", ylim=(-3, 3))
plt.show()

# %%
# The covariance itself: correlations of all 61 weights, layer by layer. They are read from 4000 draws of each
# posterior.

fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
for ax, (name, posterior) in zip(axes, posteriors.items(), strict=True):
    weights = posterior.sample(4000, generator=0)  # [4000, 61]
    shown = ax.imshow(weights.T.corrcoef(), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set(title=name, xlabel="weight")
axes[0].set_ylabel("weight")
fig.colorbar(shown, ax=axes, label="correlation")
plt.show()

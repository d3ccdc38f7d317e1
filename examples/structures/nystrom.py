"""
A few directions that gradients span: ELLA
==========================================

``lw.Nystrom`` (ELLA, Deng et al. 2022) lets the gradients at some training inputs choose *K* directions of weight
space, and asks what all data say about these. A prediction costs no more than *K* products, however large the network
is.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# Two spirals, and a network with 4,482 weights.

torch.manual_seed(0)
turn = torch.linspace(0.6, 3.2, 150)
arm = torch.stack([turn * (2 * turn).cos(), turn * (2 * turn).sin()], 1)
x = torch.cat([arm, -arm]) + 0.15 * torch.randn(300, 2)
y = torch.arange(2).repeat_interleave(150)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(400):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()

# %%
# Twice, with few directions and with more. ``report.error`` is the part of the tangent kernel that the directions miss.
# This network is small enough for the exact posterior too, over the outputs of its training data.

prior = lw.Isotropic(1.0)
posteriors = {}
for rank in (2, 40):
    structure = lw.Nystrom(rank=rank, samples=200)
    posterior = lw.Laplace(lw.Categorical(), prior=prior, structure=structure).fit(model, (x, y))
    print(f"{rank} directions miss {100 * posterior.report.error.value:.1f} % of the kernel")
    posteriors[f"{rank} directions"] = posterior
exact = lw.Laplace(lw.Categorical(), prior=prior, structure=lw.Full(view="functions")).fit(model, (x, y))
posteriors["exact"] = exact

# %%
# Where directions are missing the prior is kept. So two directions are too cautious at the data; forty cannot be told
# from the exact posterior.

side = torch.linspace(-5, 5, 60)
plane = torch.cartesian_prod(side, side)
fig, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="compressed", sharey=True)
for ax, (name, posterior) in zip(axes, posteriors.items(), strict=True):
    entropy = posterior.predict(plane).entropy.reshape(60, 60)
    shown = ax.pcolormesh(side, side, entropy.T, vmin=0, vmax=0.7, cmap="viridis", shading="gouraud", rasterized=True)
    ax.scatter(*x.T, c=y, cmap="gray", s=5, edgecolor="black", linewidth=0.3)
    ax.set(title=name, xlabel="$x_1$", aspect="equal")
axes[0].set_ylabel("$x_2$")
fig.colorbar(shown, ax=axes, label="entropy, nats")
plt.show()

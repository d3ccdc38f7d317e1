"""
The last layer alone
====================

The quickest posterior: only the weights of the last layer are uncertain. Everything below it is taken as known, and
is run forward once. Two half moons show what that adds to the network.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# Two half moons that touch, and a network of two hidden layers that has learnt them.

torch.manual_seed(0)
y = torch.arange(200) % 2
angle = torch.pi * torch.rand(200)
arc = torch.stack([angle.cos(), angle.sin()], 1)
x = torch.where(y[:, None] == 0, arc, torch.tensor([1.0, 0.5]) - arc) + 0.25 * torch.randn(200, 2)

model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()

# %%
# ``weights=lw.LastLayer()`` finds the layer that makes the outputs. Its 66 weights have a full covariance, which takes
# one forward pass over the data. Nothing is held out here: ``tune`` looks halfway between neighbours of the training
# data.

posterior = lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(model, (x, y))
posterior = lw.tune(posterior)
print(posterior)

# %%
# Left, the probabilities: doubtful along one line and nowhere else. Right, what they do not say: which inputs are
# unlike the data. The last layer sees no more than its features, and these may look familiar far away: all weights see
# more.

across, up = torch.linspace(-3, 4, 90), torch.linspace(-2.5, 3, 80)
plane = torch.cartesian_prod(across, up)
p = posterior.predict(plane)
panels = (
    ("probability of the second class", p.probs[:, 1], "RdBu_r"),
    ("unfamiliar", p.unfamiliar, "viridis"),
)
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="compressed", sharey=True)
for ax, (name, values, colours) in zip(axes, panels, strict=True):
    shown = ax.contourf(across, up, values.reshape(90, 80).T, levels=torch.linspace(0, 1, 11), cmap=colours)
    ax.scatter(*x.T, c=y, cmap="RdBu_r", s=10, edgecolor="white", linewidth=0.4)
    ax.set(title=name, xlabel="$x_1$", aspect="equal")
    fig.colorbar(shown, ax=ax)
axes[0].set_ylabel("$x_2$")
plt.show()

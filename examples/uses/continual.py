"""
One task after another
======================

A network that is trained on new data forgets the old. The posterior of the old data says which weights they need: take
it as the prior of the new.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# Two tasks in the same plane: first the data on the left, then those on the right. The boundary differs.

torch.manual_seed(0)


def task(centre):
    x = torch.randn(150, 2) * torch.tensor([0.8, 1.0]) + torch.tensor([centre, 0.0])
    return x, (x[:, 1] > torch.sin(2 * x[:, 0])).long()


first, second = task(-2.0), task(2.0)


def train(model, data, penalty):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(1000):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(data[0]), data[1], reduction="sum") + penalty(model)
        loss.backward()
        optimiser.step()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


# %%
# One network is trained on the first task and then on the second, with the same weak prior. The other takes the
# posterior of the first task, ``posterior.as_prior()``, when it learns the second. No data of the first are kept.

prior = lw.Isotropic(0.1)
forgetful, faithful = network(), network()
for model in (forgetful, faithful):
    train(model, first, prior.penalty)

posterior = lw.Laplace(lw.Categorical(), prior=prior, structure=lw.Full()).fit(faithful, first)
train(forgetful, second, prior.penalty)
train(faithful, second, posterior.as_prior().penalty)

# %%
# Both have learnt the second task. Only one still knows the first.

side = torch.linspace(-4.5, 4.5, 100)
plane = torch.cartesian_prod(side, side)
fig, axes = plt.subplots(1, 2, figsize=(8.6, 4), layout="compressed", sharey=True)
for ax, model, name in zip(axes, (forgetful, faithful), ("as usual", "the posterior as prior"), strict=True):
    right = [float((model(x).argmax(1) == y).float().mean()) for x, y in (first, second)]
    chance = model(plane).softmax(1)[:, 1].detach().reshape(100, 100)
    ax.contourf(side, side, chance.T, levels=[0, 0.5, 1], colors=["#56B4E9", "#E69F00"], alpha=0.4)
    for (x, y), marker in ((first, "o"), (second, "s")):
        ax.scatter(*x.T, c=["#0072B2" if label == 0 else "#D55E00" for label in y], s=10, marker=marker)
    ax.set(title=f"{name}\nfirst task {right[0]:.2f}, second {right[1]:.2f} right", xlabel="$x_1$", aspect="equal")
    ax.set(xlim=(-4.5, 4.5), ylim=(-4.5, 4.5))
axes[0].set_ylabel("$x_2$")
plt.show()

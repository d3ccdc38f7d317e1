"""
Quickstart
==========

A classifier in five steps: train, fit, tune, score, predict. All of it runs in seconds. Download it as a notebook at
the end of the page, and put your own network and data in place of these.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw

# %%
# 1. Train
# --------
# Three classes in the plane; 300 examples to train on, 300 to tune by, 300 to score on. The network is trained as
# usual.

torch.manual_seed(0)
x = torch.randn(900, 2)
y = (x[:, 0] > 0).long() + (x[:, 1] + 0.3 * torch.randn(900) > 0.5).long()
train, held_out, test = (DataLoader(TensorDataset(x[i], y[i]), batch_size=100) for i in torch.arange(900).split(300))

model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(60):
    for inputs, labels in train:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()

# %%
# 2. Fit
# ------
# The likelihood names the loss: ``Categorical`` for cross-entropy, ``Gaussian`` for squared error. The data are those
# that trained the network.

posterior = lw.Laplace(lw.Categorical()).fit(model, train)

# %%
# 3. Tune
# -------
# Held-out data choose how uncertain the weights are, and how that becomes probabilities. Without any write
# ``lw.tune(posterior)``.

posterior = lw.tune(posterior, held_out)
print(posterior)

# %%
# 4. Score
# --------
# The posterior, and below it the network alone. This network is calibrated already, so that the two hardly differ:
# ``ece`` is no larger than chance makes it, ``ece_floor``. What the posterior adds here is below.

print(lw.evaluate(posterior, test))

# %%

print(lw.evaluate(lw.baselines.PlainNetwork(model), test))

# %%
# 5. Predict
# ----------
# A prediction has what one may ask of it. ``probs`` are averaged over the uncertainty of the weights; ``unfamiliar``
# says which part of the familiar inputs is better known than this one.

p = posterior.predict(torch.tensor([[1.0, -1.0], [0.0, 0.5], [9.0, 9.0]]))
for label, confidence, unfamiliar in zip(p.labels, p.confidence, p.unfamiliar, strict=True):
    print(f"class {int(label)}   confidence {float(confidence):.2f}   unfamiliar {float(unfamiliar):.2f}")

# %%
# The whole plane: how sure the most likely class is, and how unfamiliar the input.

side = torch.linspace(-6, 6, 80)
plane = torch.cartesian_prod(side, side)
p = posterior.predict(plane)

fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.7), layout="compressed", sharey=True)
for ax, values, title in zip(axes, (p.confidence, p.unfamiliar), ("confidence", "unfamiliar"), strict=True):
    shown = ax.pcolormesh(side, side, values.reshape(80, 80).T, cmap="viridis", shading="gouraud", rasterized=True)
    ax.scatter(*x[:300].T, s=4, color="white", edgecolor="black", linewidth=0.3)
    ax.set(title=title, xlabel="$x_1$", aspect="equal", xlim=(-6, 6), ylim=(-6, 6))
    fig.colorbar(shown, ax=ax)
axes[0].set_ylabel("$x_2$")
plt.show()

"""
A subnetwork in full
====================

The full covariance of all weights is often too large, that of some hundred is not. ``lw.Subnetwork(count)`` picks the
weights of largest variance and takes the others as known.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# A curve with a gap, and a network of 1,153 weights.

torch.manual_seed(0)
x = torch.cat([-3 + 2 * torch.rand(40, 1), 0.5 + 2.5 * torch.rand(40, 1)])
y = x.sin() + 0.1 * torch.randn(80, 1)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
for _ in range(600):
    optimiser.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()

# %%
# The prior and the noise are tuned for all weights. Then subnetworks of three sizes, each with its full covariance,
# under the same prior.

whole = lw.tune(lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, (x, y)))
posteriors = {
    f"{count} weights": lw.Laplace(
        whole.likelihood, prior=whole.prior, structure=lw.Full(), weights=lw.Subnetwork(count)
    ).fit(model, (x, y))
    for count in (10, 50, 250)
}
posteriors[f"all {whole.network.size:,} weights"] = whole

# %%
# What is left out adds no uncertainty: the fewer weights, the shorter the error bars. With 250 of the weights they are
# less than half as long in the gap as with all of them. A subnetwork is a lower bound.

grid = torch.linspace(-4, 4, 200)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, posterior), style in zip(posteriors.items(), (":", "-.", "--", "-"), strict=True):
    ax.plot(grid, posterior.predict(grid[:, None]).outputs.std[:, 0], style, color="#0072B2", label=name)
ax.plot(x, torch.zeros(80), "k|", markersize=10, label="training inputs")
ax.set(xlabel="input", ylabel="standard deviation of the function", ylim=(0, None))
fig.legend(frameon=False, loc="outside right center")
plt.show()

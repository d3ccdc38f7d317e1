"""
The prior by EM, with draws
===========================

The prior precision says how far weights may stray before any data. ``lw.EM()`` chooses it, and the noise, in turns: the
E step solves for the mode and for some draws, the M step asks which prior would make them likeliest (Antorán et al.
2023). It needs products with the curvature alone.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# A curve with a gap, and a network of 1,153 weights.

torch.manual_seed(0)
x = torch.cat([-3 + 2 * torch.rand(40, 1), 0.5 + 2.5 * torch.rand(40, 1)]).double()
y = x.sin() + 0.1 * torch.randn(80, 1).double()
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()
optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
for _ in range(600):
    optimiser.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()

# %%
# We start from a prior that is far too strong, a precision of 100. Once by 16 draws, once in full, which this network
# is small enough for.

prior, likelihood = lw.Isotropic(100.0), lw.Gaussian(1.0)
drawn = lw.Laplace(likelihood, prior=prior, structure=lw.Sampled(16)).fit(model, (x, y))
exact = lw.Laplace(likelihood, prior=prior, structure=lw.Full()).fit(model, (x, y))
tuned = {"16 draws": lw.tune(drawn, lw.EM()), "exact": lw.tune(exact, lw.EM())}

# %%
# ``trace`` has every step. The noise that is found is near that of the data, 0.1 (dotted).

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for (name, posterior), style in zip(tuned.items(), ("o--", "-"), strict=True):
    color = "#D55E00" if name == "16 draws" else "#333333"
    left.plot([step.prior_precision for step in posterior.trace], style, markersize=3, color=color, label=name)
    right.plot([step.noise_precision**-0.5 for step in posterior.trace], style, markersize=3, color=color)
left.set(xlabel="step", ylabel="prior precision", yscale="log")
right.set(xlabel="step", ylabel="standard deviation of the noise", yscale="log")
right.axhline(0.1, color="#999999", linestyle=":")
left.legend(frameon=False)
for ax in (left, right):
    ax.xaxis.get_major_locator().set_params(integer=True)
plt.show()

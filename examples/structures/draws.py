"""
Full covariance by products, and draws of functions
===================================================

``lw.Sampled`` never holds the covariance. It solves linear systems with the curvature, by products alone, for some
draws of the weights, and keeps the draws. Each draw is a function that the data allow.
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
# 64 draws, with a prior and a noise that are given.

prior, likelihood = lw.Isotropic(1.0), lw.Gaussian(100.0)
drawn = lw.Laplace(likelihood, prior=prior, structure=lw.Sampled(64)).fit(model, (x, y))
exact = lw.Laplace(likelihood, prior=prior, structure=lw.Full()).fit(model, (x, y))

# %%
# Left, eight of the functions: alike where there are data, different in the gap. Right, the standard deviation by 64
# draws beside the exact one, which this network is small enough for. Draws are off by the noise of 64 numbers, about
# nine per cent of a standard deviation.

grid = torch.linspace(-4, 4, 200).double()
functions = drawn.sample_functions(grid[:, None], 8, generator=0)[..., 0]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(grid, functions.T, color="#0072B2", linewidth=0.9)
left.plot(x, y, "k.", markersize=4)
left.set(xlabel="input", ylabel="output", title="functions that the data allow", ylim=(-3, 3))
right.plot(grid, exact.predict(grid[:, None]).outputs.std[:, 0], color="#333333", label="exact")
right.plot(grid, drawn.predict(grid[:, None]).outputs.std[:, 0], "--", color="#D55E00", label="64 draws")
right.set(xlabel="input", ylabel="standard deviation of the function", ylim=(0, None))
right.legend(frameon=False)
plt.show()

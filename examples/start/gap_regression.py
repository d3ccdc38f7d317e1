"""
Error bars where there are no data
==================================

A network learns a curve from 80 points. Between −1 and 1.5 there are none. The network answers there too, and its
answer does not say that it is a guess. The posterior does: its band is narrow at the data and wide in the gap.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# The data: a curve with noise of standard deviation 0.15, seen left and right of a gap.

torch.manual_seed(6)


def curve(x):
    return torch.sin(2 * x) + x / 3


x = torch.cat([-4 + 3 * torch.rand(40, 1), 1.5 + 2.5 * torch.rand(40, 1)]).double()
y = curve(x) + 0.15 * torch.randn(80, 1).double()

# %%
# The network is trained as usual. Nothing of this knows of lapwing.

model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
for _ in range(1000):
    optimiser.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()

# %%
# Two lines. The first measures how the loss curves at the trained weights. The second chooses the prior precision and
# the noise, by the evidence of the training data.

posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, (x, y))
posterior = lw.tune(posterior)
print(posterior)

# %%
# A prediction is a distribution. Its mean is what the network says. ``outputs.std`` is the uncertainty of the function,
# ``std`` that of a new observation, noise included.

grid = torch.linspace(-5.5, 5.5, 300).double()
p = posterior.predict(grid[:, None])

fig, ax = plt.subplots(figsize=(8, 3.9), layout="constrained")
noise_std = posterior.likelihood.noise_std
lw.plots.plot_band(grid, p.mean[:, 0], p.outputs.std[:, 0], noise_std=noise_std, label="the network", ax=ax)
ax.plot(grid, curve(grid), ":", color="#D55E00", label="truth")
ax.plot(x, y, "k.", markersize=4, label="training data")
ax.set(xlabel="input", ylabel="output", ylim=(-6.5, 6.5))
ax.get_legend().remove()
fig.legend(*ax.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside upper center")
plt.show()

# %%
# The noise was not given. It was found.

print(f"standard deviation of the noise: {float(noise_std):.3f}, the truth is 0.150")

"""
Hessian-free: error bars from refits
====================================

``lw.HessianFree`` (McInerney and Kallus 2024) asks the network itself: trained a little further, with a small reward
for what it predicts, how far do its outputs move? Where the data hold them they hardly move. That gives the variances
of the exact Hessian, which is never written down.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lapwing as lw

# %%
# A small network, trained to the minimum of loss and prior. The method asks for that; ``fit`` refuses weights that are
# not near one.

torch.manual_seed(0)
x = torch.cat([torch.linspace(-2.5, -0.8, 25), torch.linspace(0.8, 2.5, 25)])[:, None].double()
y = x.sin() + 0.1 * torch.randn(50, 1).double()
model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
prior, likelihood = lw.Isotropic(1.0), lw.Gaussian(100.0)
optimiser = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")


def loss():
    optimiser.zero_grad()
    value = 50.0 * (model(x) - y).square().sum() + prior.penalty(model)
    value.backward()
    return value


optimiser.step(loss)

# %%
# The refits are for inputs that are named beforehand. Beside them two posteriors that do hold a matrix: that of the
# exact Hessian, and that of its Gauss-Newton part, the default elsewhere.

grid = torch.linspace(-4, 4, 120).double()[:, None]
refits = lw.HessianFree(likelihood, prior=prior).fit(model, (x, y), grid)
hessian = lw.Laplace(likelihood, prior=prior, curvature=lw.Hessian(), structure=lw.Full()).fit(model, (x, y))
gauss_newton = lw.Laplace(likelihood, prior=prior, structure=lw.Full()).fit(model, (x, y))

# %%
# The refits agree with the exact Hessian.

fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for posterior, name, style in (
    (gauss_newton, "Gauss-Newton", {"color": "#999999"}),
    (hessian, "exact Hessian", {"color": "#56B4E9", "linewidth": 4}),
    (refits, "refits", {"color": "#D55E00", "linestyle": "--"}),
):
    ax.plot(grid[:, 0], posterior.predict(grid).outputs.std[:, 0], label=name, **style)
ax.plot(x[:, 0], torch.zeros(50), "k|", markersize=10, label="training inputs")
ax.set(xlabel="input", ylabel="standard deviation of the function", ylim=(0, None))
ax.legend(frameon=False)
plt.show()

"""
A Gaussian process of some thousand rows
========================================

The same linear model without a network: a kernel says how alike the function is at two inputs. On many rows the matrix
of the kernel is not factorised. Stochastic dual descent (Antorán 2024) reads some of its rows at a time.
"""

import matplotlib.pyplot as plt
import torch

import lapwing as lw

# %%
# 2,000 rows of two columns, with noise of standard deviation 0.2. There are none near the middle.

torch.manual_seed(0)


def surface(x):
    return torch.sin(4 * x[:, 0]) * torch.cos(5 * x[:, 1])


x = 2 * torch.rand(3000, 2, dtype=torch.float64) - 1
x = x[x.norm(dim=1) > 0.4][:2000]
y = surface(x) + 0.2 * torch.randn(len(x), dtype=torch.float64)

# %%
# The kernel and the noise are tuned on 300 of the rows. Then all rows, by dual descent, for the mean and for 32
# functions at once, behind the standard deviations.

few = lw.tune(lw.GP().fit((x[:300], y[:300])))
posterior = lw.GP(few.kernel, few.likelihood, solver=lw.solvers.SDD(), samples=32).fit((x, y))
print(f"noise found: {float(few.likelihood.noise_std):.3f}, the truth is 0.200")

# %%
# The mean goes on where there are no rows, and the standard deviation says that it guesses.

side = torch.linspace(-1, 1, 50, dtype=torch.float64)
plane = torch.cartesian_prod(side, side)
p = posterior.predict(plane)
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="compressed", sharey=True)
panels = (
    ("truth", surface(plane), {"cmap": "RdBu_r", "vmin": -1.1, "vmax": 1.1}),
    ("mean", p.mean[:, 0], {"cmap": "RdBu_r", "vmin": -1.1, "vmax": 1.1}),
    ("standard deviation", p.outputs.std[:, 0], {"cmap": "viridis"}),
)
for ax, (name, values, colours) in zip(axes, panels, strict=True):
    shown = ax.pcolormesh(side, side, values.reshape(50, 50).T, shading="gouraud", rasterized=True, **colours)
    ax.set(title=name, xlabel="$x_1$", aspect="equal")
    fig.colorbar(shown, ax=ax)
axes[0].set_ylabel("$x_2$")
plt.show()

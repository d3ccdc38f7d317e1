"""
Error bars of a tomogram
========================

A scanner measures line integrals of an image. A U-net that is fitted to this one scan, its weights the image, is a deep
image prior. Made linear at the weights found, it is a Gaussian linear model once more: every pixel gets an error bar
(Antorán 2024).
"""

import matplotlib.pyplot as plt
import torch

import lapwing as lw

# %%
# A generated walnut of 32 × 32 pixels, seen from 20 angles, with noise of 5 %.

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
geometry = lw.ct.Parallel2d(pixels=(32, 32), angles=lw.ct.equidistant(20), detector=47)
projector = lw.ct.Projector(geometry)
truth = lw.ct.walnut((32, 32), generator=generator).float()
clean = projector.push(truth.flatten()).view(geometry.sinogram)
sinogram, noise_std = lw.ct.add_gaussian(clean, 0.05, generator=generator)

# %%
# The classical way for comparison, then the network, and its posterior. A few hundred steps and a small network:
# seconds. See the guide to tomography for scans of real size.

classical = lw.ct.filtered_back_projection(sinogram, geometry)
z = torch.randn(1, 1, 32, 32, generator=generator)
measured = sinogram.flatten()
network = lw.ct.UNet(scales=2, channels=8)
fit = lw.ct.DeepImagePrior(tv=1.0, rate=1e-2, steps=2000).fit(network, z, projector, measured, noise_std=noise_std)
images = lw.ct.ImagePosterior.of(fit.network, z, projector, measured, noise_std=noise_std)
images = lw.tune(images, lw.EM(samples=4, noise=False))

# %%
# The network's image is nearer to the truth than the classical one. Most of its error is of the size that the standard
# deviation says; a spot at the upper left is worse.

fig, axes = plt.subplots(1, 5, figsize=(12, 3.3), layout="compressed")
panels = (
    ("truth", truth, 1.0),
    ("filtered back-projection", classical, 1.0),
    ("network", images.mean, 1.0),
    ("error of the network", (images.mean - truth).abs(), 0.3),
    ("standard deviation", images.std, 0.3),
)
for ax, (name, image, largest) in zip(axes, panels, strict=True):
    shown = ax.imshow(image.detach(), cmap="gray" if largest == 1.0 else "viridis", vmin=0, vmax=largest)
    ax.set(title=name, xticks=[], yticks=[])
    fig.colorbar(shown, ax=ax, orientation="horizontal")
plt.show()

# %%
# The intervals hold about as many pixels as they should.

covered = float(((images.mean - truth).abs() < 1.96 * images.std).float().mean())
print(f"95 % intervals cover {100 * covered:.0f} % of the pixels")
print(f"PSNR: {lw.ct.psnr(classical, truth):.1f} dB classical, {lw.ct.psnr(images.mean, truth):.1f} dB by the network")

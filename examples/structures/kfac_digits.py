"""
All weights of a network of digits: KFAC
========================================

A small convolutional network reads handwritten digits. It has some thousand weights; KFAC holds two small matrices a
layer in place of their covariance. The posterior of all weights makes probabilities less often too sure.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import lapwing as lw

# %%
# The digits of scikit-learn, 8 × 8 pixels: 200 to train on, 200 to tune by, 1000 to score on.

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(digits)
order = torch.randperm(len(images))
train, held_out, test = ((images[part], labels[part]) for part in order[:1400].split([200, 200, 1000]))

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64, 10),
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(150):
    for batch in torch.randperm(200).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
        optimiser.step()

# %%
# Fit and tune. ``evaluate`` scores any predictor, the network itself too.

posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train)
posterior = lw.tune(posterior, held_out)
plain = lw.baselines.PlainNetwork(model)
for name, predictor in (("the network", plain), ("KFAC", posterior)):
    scores = lw.evaluate(predictor, test)
    print(f"{name:12s} accuracy {scores['accuracy']:.3f}   NLL {scores['nll']:.3f} nats   ECE {scores['ece']:.3f}")

# %%
# A reliability diagram: of the answers with 80 % confidence 80 % should be right. Bars below the diagonal are answers
# that are too sure.

fig, axes = plt.subplots(1, 2, figsize=(9, 5.4), layout="constrained")
for ax, predictor, title in zip(axes, (plain, posterior), ("the network", "KFAC"), strict=True):
    lw.plots.plot_reliability(predictor.predict(test[0]).probs, test[1], bins=10, ax=ax)
    ax.set(title=title, ylim=(-0.5, 1.5))  # room for the legend
plt.show()

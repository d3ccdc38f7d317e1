"""
Answer only when sure, and know strangers
=========================================

A network that must answer everything makes errors. One that may pass on what it is not sure of makes fewer. And digits
that it has never seen should look strange to it, however sure its answer is.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import lapwing as lw

# %%
# A network learns the digits 0 to 6 from 200 images. It never sees a 7, an 8 or a 9.

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32) / 16
labels = torch.tensor(digits)
strangers = images[labels > 6]
images, labels = images[labels < 7], labels[labels < 7]
order = torch.randperm(len(images))
train, held_out, test = ((images[part], labels[part]) for part in order[:1200].split([200, 200, 800]))

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 7))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(train[0]), train[1]).backward()
    optimiser.step()

posterior = lw.tune(lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train), held_out)

# %%
# Left: the share of wrong answers, as the least sure are passed on. Right: ``unfamiliar``, the share of familiar inputs
# that are better known than this one. Of familiar inputs one in twenty is above .95; of strangers most are.

p = posterior.predict(test[0])
curve = lw.metrics.rejection_curve(p.probs, test[1])
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(100 * curve.fraction, 100 * curve.risk, color="#0072B2")
left.set(xlabel="passed on, % of the inputs", ylabel="wrong, % of the answers", xlim=(0, 60), ylim=(0, None))
bins = torch.linspace(0, 1, 21)
right.hist(p.unfamiliar, bins, density=True, color="#56B4E9", label="digits it knows")
right.hist(
    posterior.predict(strangers).unfamiliar, bins, density=True, histtype="step", color="#D55E00", label="7, 8, 9"
)
right.axvline(0.95, color="#333333", linestyle=":", linewidth=1)
right.set(xlabel="unfamiliar", ylabel="density", yscale="log")
right.legend(frameon=False, loc="upper left")
plt.show()

# %%
# As one number, the area under the ROC curve: 1 if every stranger looks stranger than every familiar digit, 0.5 by
# chance. Beside it the entropy of the network alone.

plain = lw.baselines.PlainNetwork(model)
for name, predictor in (("posterior", posterior), ("network", plain)):
    print(f"{name:10s} {lw.evaluate(predictor, test, ood=strangers)['ood_auroc']:.3f}")

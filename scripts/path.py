"""How many files and frames of lapwing a call enters, on a small convolutional network.

    python scripts/path.py [--files]

A frame is one call of a Python function of the library, comprehensions and generators' resumptions included.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import lapwing as lw

ROOT = Path(lw.__file__).parent


@contextmanager
def entered() -> Iterator[Counter[str]]:
    """Frames by file while the body runs."""
    frames: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            frames[str(Path(frame.f_code.co_filename).relative_to(ROOT))] += 1

    sys.setprofile(note)
    try:
        yield frames
    finally:
        sys.setprofile(None)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls that are followed, each with what it needs made beforehand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 10
    likelihood = lw.Categorical()
    kfac, products = lw.Laplace(likelihood, structure=lw.KFAC()), lw.Laplace(likelihood, structure=lw.MatrixFree())
    yield "KFAC fit", lambda: kfac.fit(model, (x, y))
    posterior, solved = kfac.fit(model, (x, y)), products.fit(model, (x, y))
    curvature, block = solved.problem.curvature, torch.ones(posterior.network.size, 1)
    yield "first GGN product", lambda: curvature @ block
    yield "predict", lambda: posterior.predict(x[:10])
    yield "default tune", lambda: lw.tune(posterior)
    sampled = lw.Laplace(likelihood, structure=lw.Sampled(samples=4)).fit(model, (x, y))
    yield "EM on Sampled", lambda: lw.tune(sampled, lw.EM(steps=2))


def main() -> None:
    """Follow every call and print what it entered."""
    parser = argparse.ArgumentParser(prog="python scripts/path.py", description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files, with the frames of each")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, call in calls():
        with entered() as frames:
            call()
        print(f"{name:18s} {len(frames):3d} files {sum(frames.values()):7,d} frames")
        if args.files:
            for file, count in frames.most_common():
                print(f"    {count:7,d} {file}")


if __name__ == "__main__":
    main()

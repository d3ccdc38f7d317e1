"""Structures of the posterior, lapwing against laplace-torch: fit, evidence, tune, predict.

``python -m benchmarks.structures --json FILE [--only lenet|resnet20|transformer] [--data DIR]``
"""

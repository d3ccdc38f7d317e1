"""Gaussian process regression: the linear system of a kernel and noise, its solves, and what they tell."""

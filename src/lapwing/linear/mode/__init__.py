"""Modes: the minimum of the convex loss that a linear model has with a Gaussian prior."""

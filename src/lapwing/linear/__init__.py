"""Gaussian linear models: the problem, its solvers and preconditioners, its evidence."""

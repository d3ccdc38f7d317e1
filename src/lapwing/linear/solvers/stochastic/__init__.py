"""Solvers that descend by random parts of the data."""

"""Curvature of a network's loss: products, layer factors, and what adds them up."""

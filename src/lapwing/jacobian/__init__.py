"""The floor that differentiates a network: its Jacobian, layer by layer or by products."""

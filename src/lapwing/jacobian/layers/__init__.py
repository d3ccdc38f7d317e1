"""The Jacobian of known layers as products of inputs and gradients."""

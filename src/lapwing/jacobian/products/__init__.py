"""Products with the Jacobian, the Gauss-Newton matrix and the Hessian."""

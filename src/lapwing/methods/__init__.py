"""Whole methods: the Laplace recipe, Hessian-free Laplace, training on the marginal likelihood."""

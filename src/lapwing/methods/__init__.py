"""Whole methods: the Laplace recipe, Hessian-free Laplace, the marginal likelihood, Gaussian processes, tomography."""

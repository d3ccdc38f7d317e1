"""Products with the Gauss-Newton matrix: one column and a block of 32, against curvlinops, in the same process."""

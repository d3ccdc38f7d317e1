"""Products recorded once as graphs of tensor operations, and cut in two: what depends on the column, and the rest."""

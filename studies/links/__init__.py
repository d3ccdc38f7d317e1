"""Which link turns uncertain logits into the best probabilities, and whether held-out data know it."""

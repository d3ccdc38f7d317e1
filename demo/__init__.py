"""An endpoint for exported posteriors, which needs no lapwing."""

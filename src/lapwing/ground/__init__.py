"""What every floor stands on: data, errors, probes, results, trees of tensors, archives."""

"""What every floor stands on: data, errors, probes, results, types, trees of tensors, archives."""

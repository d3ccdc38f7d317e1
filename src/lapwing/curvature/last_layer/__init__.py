"""The layer that makes the outputs, where it alone is uncertain: nothing is pulled back."""

"""Files: records of dataclasses and tensors, written whole or not at all."""

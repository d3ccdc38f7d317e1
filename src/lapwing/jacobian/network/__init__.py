"""A network as a function of its parameters: what it is made of and what it can do."""

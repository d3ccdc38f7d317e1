"""The tangent kernel from a few landmarks: which, what they span, and when to stop adding data."""

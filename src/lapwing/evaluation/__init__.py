"""Scores of predictions, baselines, shifted data and checks of draws."""

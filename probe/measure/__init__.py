"""Measuring one model: the run, its measures, perturbations and the store of its results."""

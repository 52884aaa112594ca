"""Stands in for torchvision, of which the package registry has no build for a CPU.

vLLM reads a Qwen3.5 of text alone with the file of the multimodal one, whose imports want torchvision's names. A text
model calls none of them, so here they are names and no more: what would process an image fails at once.
"""

__version__ = "0.28.0"

"""Interoperability with transformers and inference engines: configs, checkpoints and loaded models."""

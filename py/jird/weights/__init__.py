"""Checkpoints: read headers, plan byte ranges, stream them to the GPU and convert them there."""

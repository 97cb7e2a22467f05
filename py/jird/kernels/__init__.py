"""Kernels: one WGSL file and one numpy reference each, side by side; importing this package registers them all."""

"""Devices and the executor: record once, replay each step."""

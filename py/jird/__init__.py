"""jird: local AI in a browser tab, with the engine written in Python."""

__version__ = "0.1.0"

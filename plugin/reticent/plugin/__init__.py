"""The server: one request from tenant to answer, and the two ways in (inside vLLM, in front of vLLM)."""

__all__ = ["__version__"]

__version__ = "0.1.0"

"""moewatch: a live thrashing monitor for llama.cpp models larger than memory."""

__version__ = "0.1.0"

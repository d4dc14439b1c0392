"""Describes the model file: GGUF headers, shards, and which bytes belong to which layer and expert."""

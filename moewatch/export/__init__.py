"""Frames for programs and for people without a screen."""

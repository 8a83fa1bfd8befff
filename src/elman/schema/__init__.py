"""Typed sections of the configuration, one file per kind; none imports torch."""

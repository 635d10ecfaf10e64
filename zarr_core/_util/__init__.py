"""Helpers without knowledge of stores: command line, documents, units, redaction, processes."""

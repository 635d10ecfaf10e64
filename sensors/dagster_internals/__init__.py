"""Everything of the platform that uses parts of Dagster without a public interface. Written for Dagster 1.13.

``tests/platform/test_dagster_internals.py`` compares it with the installed Dagster.
"""

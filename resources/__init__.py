"""Dagster resources: access to sources, stores and warehouses, and worker processes."""

"""Sensors and schedules: arrivals at the sources, automation, refreshes, failures."""

"""What sets work off: arrivals at the sources, schedules, automation conditions, failures."""

"""Speed, as ratios measured side by side in one run, with the environment printed."""

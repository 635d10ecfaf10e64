"""Reading: from draws to byte ranges to arrays."""

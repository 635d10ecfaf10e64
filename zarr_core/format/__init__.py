"""Pure functions of the stored format: field names, codecs, array metadata, shards, point order, moments."""

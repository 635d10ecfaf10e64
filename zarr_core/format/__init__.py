"""Pure functions of the stored format: names, codecs, array metadata, shards, byte ranges, point order, moments."""

"""One op, several hands: `attend` reads ordered blocks for all rows at once."""

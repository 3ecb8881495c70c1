"""Finding the fastest way of computing each layer by measuring: candidates, a measuring child, records."""

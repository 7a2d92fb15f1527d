"""A package whose trainer imports from it, so that it runs as a module only."""

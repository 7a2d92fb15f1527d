"""The coordinator: decides with the core, keeps the journal, and answers the command line."""

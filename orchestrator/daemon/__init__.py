"""The loops: coordinator, agent and shim. Threads and signals live here only."""

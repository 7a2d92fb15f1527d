"""The long-lived processes: coordinator, agent and shim. Only this room uses threads and signals."""

"""The part of orch that runs inside the user's process. `orchestrator.runtime` is its public interface."""

from orchestrator.client.client import Client as Client
from orchestrator.client.client import Run as Run

__version__: str

"""What a task is started with: its slot, its ports, its environment and TF_CONFIG."""

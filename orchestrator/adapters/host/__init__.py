"""What runs on hosts: processes, control groups, logs and directories there. Standard library only."""

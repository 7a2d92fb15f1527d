"""Code that runs on hosts: processes, control groups, logs and directories there. It is standard library only."""

"""The parent of all that runs on a host which an engine has allotted: it outlives channels, as sshd does."""

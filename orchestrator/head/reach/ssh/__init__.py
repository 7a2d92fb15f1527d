"""Transport `ssh`: paramiko and fabric, known_hosts and ssh_config. Nothing outside this room imports them."""

"""The head node itself: directories, disk, services, secrets."""

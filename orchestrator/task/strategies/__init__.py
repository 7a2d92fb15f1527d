"""Modules of strategies whose processes need preparation before the script begins."""

"""Prints what would act on a terminal, and dies of an error that would too."""

CLEAR, TITLE = "\x1b[2J", "\x1b]0;pwned\x07"

print(f"{CLEAR}a line of the log", flush=True)
raise ValueError(f"{TITLE}an error")

"""Where this user's own files are."""

from pathlib import Path


def home_directory() -> Path:
    """The home directory; `/` for a user who has none (a container started with `--user 4242`): writing there is refused in words."""
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor a line in /etc/passwd
        return Path("/")

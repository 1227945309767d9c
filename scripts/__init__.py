"""Programs for developers of callboard."""

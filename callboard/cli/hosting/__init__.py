"""Parts of `callboard node run`."""

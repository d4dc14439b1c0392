"""Acts on the page cache: what to read into it (plan, pure), how much fits (budget), and the reading (run)."""

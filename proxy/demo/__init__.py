"""Two small vLLM engines on the CPU: for trying Counterproof out, and for its own tests."""

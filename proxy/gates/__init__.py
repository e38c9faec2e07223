"""Gates of the dialects beside chat: each holds tool calls back in one kind of stream. Pure."""

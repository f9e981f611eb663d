"""Many prompts in, one frame out: `map` and `compare`. They sit on `submit` and handles, and know no engine."""

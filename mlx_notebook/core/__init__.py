"""The room that decides: events in, instructions out, time handed in. No thread, no MLX, no clock, no I/O."""

"""The room that computes, on MLX, on the engine thread only."""

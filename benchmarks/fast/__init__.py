"""Tables of speed beside every peer, one command each: `python -m benchmarks.fast TABLE --shape SHAPE`.

Ours and the peers of one table share one loaded model and one process, and take turns. Each table is kept as soon as
it is measured, since a lent machine may be gone before the next.
"""

from mlx_notebook.models.backend_check import import_mlx

import_mlx()  # the BLAS that ours finds comes before MLX: the modules here import it at their top

// The timeline widget. The twin of `mlx_notebook/notebook/timeline_widget.py`.

import { boardWidget } from "./boardwidget";
import { TimeView } from "./timeview";

export default boardWidget((board, chosen, ending) => new TimeView(board, chosen, ending));

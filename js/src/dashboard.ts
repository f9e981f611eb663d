// The dashboard widget. The twin of `mlx_notebook/notebook/dashboard_widget.py`.

import { boardWidget } from "./boardwidget";
import { DashView } from "./dashview";

export default boardWidget((board, chosen, ending) => new DashView(board, chosen, ending));

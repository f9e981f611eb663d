// The dashboard widget. The twin of `mlx_notebook/notebook/dashboard_widget.py`.

import type { AnyWidget, InitializeProps, RenderProps } from "@anywidget/types";
import { type Board, connect } from "./board";
import type { Traits } from "./boardwire";
import { DashView } from "./dashview";
import { page, present } from "./parts";

function widget() {
  let board: Board | undefined;
  return {
    initialize({ model, signal }: InitializeProps<Traits>) {
      board = connect(model, page, signal);
    },

    render({ model, el }: RenderProps<Traits>) {
      board ??= connect(model, page, undefined);
      const ending = new AbortController();
      const chosen = {
        get: () => model.get("selected") ?? [],
        set: (rows: number[]) => {
          model.set("selected", rows);
          model.save_changes();
        },
      };
      const view = new DashView(board, chosen, ending.signal);
      const onChosen = () => view.chosenChanged();
      model.on("change:selected", onChosen);
      el.append(view.root);
      view.draw();
      present(model, view.root, ending.signal);
      return () => {
        model.off("change:selected", onChosen);
        ending.abort();
      };
    },
  };
}

export default widget satisfies AnyWidget<Traits>;

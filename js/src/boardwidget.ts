// What the dashboard and the timeline have in common as widgets: a board for all places of the page, a view for each.

import type { AnyWidget, InitializeProps, RenderProps } from "@anywidget/types";
import { type Board, connect } from "./board";
import type { Traits } from "./boardwire";
import { page, present } from "./parts";
import type { Choice } from "./wire";

/** The rows that are chosen and the first and last step that are marked: the kernel has them too. */
export interface Choices extends Choice {
  brushed(): number[];
  brush(steps: number[]): void;
}

interface BoardView {
  readonly root: HTMLElement;
  draw(): void;
  chosenChanged(): void;
}

export function boardWidget(view: (board: Board, chosen: Choices, ending: AbortSignal) => BoardView) {
  function widget() {
    let board: Board | undefined;
    return {
      initialize({ model, signal }: InitializeProps<Traits>) {
        board = connect(model, page, signal);
      },

      render({ model, el }: RenderProps<Traits>) {
        board ??= connect(model, page, undefined);
        const known = board;
        const ending = new AbortController();
        const share = (name: "selected" | "brush") => (numbers: number[]) => {
          model.set(name, numbers);
          model.save_changes();
        };
        const chosen = {
          get: () => model.get("selected") ?? [],
          set: share("selected"),
          brushed: () => model.get("brush") ?? [],
          brush: share("brush"),
        };
        const shown = view(known, chosen, ending.signal);
        const onChosen = () => shown.chosenChanged();
        model.on("change:selected", onChosen);
        model.on("change:brush", onChosen);
        el.append(shown.root);
        shown.draw();
        present(model, shown.root, ending.signal, () => known.history);
        return () => {
          model.off("change:selected", onChosen);
          model.off("change:brush", onChosen);
          ending.abort();
        };
      },
    };
  }
  return widget satisfies AnyWidget<Traits>;
}

// The stream widget. The twin of `mlx_notebook/notebook/stream_widget.py`.
//
// `initialize` runs once a page and model: it says hello, and keeps the rows whether or not they
// are shown. `render` runs once a place in the page.

import type { AnyModel, AnyWidget, InitializeProps, RenderProps } from "@anywidget/types";
import { Cancels } from "./cancel";
import { askUntilHeard, pageIsSeen, watch } from "./presence";
import { Store } from "./store";
import { StreamView } from "./view";
import type { Choice, FromKernel, ToKernel, Traits } from "./wire";

/** Another load of the page, or another frame of it, has another time of origin. */
const page = String(performance.timeOrigin);

let views = 0;

/** Sends to the kernel; where it is gone there is nobody to tell, and a view must not raise for it. */
function sender(model: AnyModel<Traits>): (message: ToKernel) => void {
  return (message) => {
    try {
      model.send(message);
    } catch (error) {
      console.debug("mlx-notebook: the kernel cannot be reached", error);
    }
  };
}

function choiceOf(model: AnyModel<Traits>): Choice {
  return {
    get: () => model.get("selected") ?? [],
    set: (rows) => {
      model.set("selected", rows);
      model.save_changes();
    },
  };
}

function widget() {
  // Per model: anywidget calls this function for each one, while the module itself may be shared.
  let store: Store | undefined;
  let cancels: Cancels | undefined;
  let heard = false;

  function start(model: AnyModel<Traits>, signal: AbortSignal | undefined) {
    const send = sender(model);
    const kept = new Store(model.get("snapshot"));
    kept.askTokens = (row, view) => send({ kind: "tokens", row, on: true, view });
    const asks = new Cancels((ask, rows) => send({ kind: "cancel", ask, rows }));
    const onSnapshot = () => {
      heard = true;
      kept.replace(model.get("snapshot"));
    };
    const onMessage = (message: FromKernel) => {
      heard = true;
      if (message.kind === "ack") asks.heard(message.ask);
      else if (message.kind === "token") kept.tellToken(message.row, message.n, message.facts);
      else if (message.kind === "delta" && !kept.add(message.seq, message.rows)) send({ kind: "resync" });
    };
    const onLost = () => kept.lose();
    model.on("change:snapshot", onSnapshot);
    model.on("msg:custom", onMessage);
    // The widget manager's own event, when it gives up the model's connection: a kernel restart does that.
    model.on("comm_live_update", onLost);
    signal?.addEventListener("abort", () => {
      model.off("change:snapshot", onSnapshot);
      model.off("msg:custom", onMessage);
      model.off("comm_live_update", onLost);
    });
    store = kept;
    cancels = asks;
    send({ kind: "hello", page });
    return { store: kept, cancels: asks };
  }

  return {
    initialize({ model, signal }: InitializeProps<Traits>) {
      start(model, signal);
    },

    render({ model, el }: RenderProps<Traits>) {
      const { store: rows, cancels: asks } = store && cancels ? { store, cancels } : start(model, undefined);
      views += 1;
      const view = `${page}/${views}`;
      const ending = new AbortController();
      const send = sender(model);
      const shown = new StreamView(rows, asks, ending.signal, view, send, choiceOf(model));
      const { root } = shown;
      el.append(root);
      const onChosen = () => shown.chosenChanged();
      model.on("change:selected", onChosen);
      ending.signal.addEventListener("abort", () => model.off("change:selected", onChosen));
      const present = () => send({ kind: "view", page, view, on: pageIsSeen() });
      present();
      askUntilHeard(
        () => (heard || rows.final ? "here" : "silent"),
        () => {
          send({ kind: "hello", page });
          present();
        },
        ending.signal,
      );
      watch(
        root,
        {
          visible: (on) => send({ kind: "visible", view, on }),
          selection: (active) => send({ kind: "selection", view, active }),
        },
        ending.signal,
      );
      return () => {
        ending.abort();
        send({ kind: "gone", view });
      };
    },
  };
}

export default widget satisfies AnyWidget<Traits>;

// Small helpers for the DOM. Text always goes in as text: nothing here takes markup.

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

export function button(className: string, text: string): HTMLButtonElement {
  const made = element("button", `mlx-button ${className}`, text);
  made.type = "button";
  return made;
}

/** Sets text only where it differs: an unchanged live region stays silent, a selection stays whole. */
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows or hides; never both, never by style alone. */
export function show(node: HTMLElement, on: boolean): void {
  if (node.hidden === on) node.hidden = !on;
}

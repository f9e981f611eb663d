// Copying text, also where the page may not use the clipboard API (plain http, some web views).

/** Whether the text is in the clipboard now. `home` is where a helper may live for a moment, inside the view. */
export async function copyText(text: string, home: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text, home);
  }
}

function copyBySelection(text: string, home: HTMLElement): boolean {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "mlx-unseen";
  home.append(area);
  area.focus({ preventScroll: true });
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }
}

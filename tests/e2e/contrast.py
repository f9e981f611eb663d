"""Whether words can be read: which stand out too little from what is behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST = 4.5
"""To 1: what WCAG 2 (AA) asks of text."""

_FAINT = """([selector, least]) => {
    const numbers = (colour) => {  // "rgb(1, 2, 3)", or "color(srgb 0.1 0.2 0.3 / 0.4)" of a mix
        const [r, g, b, ...share] = colour.match(/[\\d.]+/g).map(Number);
        return colour.startsWith("color") ? [r * 255, g * 255, b * 255, ...share] : [r, g, b, ...share];
    };
    const light = (channels) => {
        const [r, g, b] = channels.map((value) => value / 255)
            .map((share) => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const over = (front, share, back) => front.map((value, i) => share * value + (1 - share) * back[i]);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches &&
        getComputedStyle(document.documentElement).colorScheme.includes("dark");
    const behind = (node) => {
        if (!node) return dark ? [18, 18, 18] : [255, 255, 255];
        const [r, g, b, share = 1] = numbers(getComputedStyle(node).backgroundColor);
        return share === 1 ? [r, g, b] : over([r, g, b], share, behind(node.parentElement));
    };
    const strength = (node) => node ? Number(getComputedStyle(node).opacity) * strength(node.parentElement) : 1;
    const said = (node) => [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
    const seen = [...document.querySelectorAll(selector)].filter((one) => said(one) && one.checkVisibility());
    return seen.flatMap((one) => {
        const back = behind(one);
        const [r, g, b, share = 1] = numbers(getComputedStyle(one).color);
        const pair = [over([r, g, b], share * strength(one), back), back].map(light);
        const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        const what = `${one.className || one.tagName}: ${one.textContent.slice(0, 30)}`;
        return ratio < least ? [`${what} (${ratio.toFixed(2)})`] : [];
    });
}"""


def faint_words(page: Page, selector: str) -> list[str]:
    """Of the elements with words of their own, those whose words are fainter than that."""
    found: list[str] = page.evaluate(_FAINT, [selector, LEAST])
    return found

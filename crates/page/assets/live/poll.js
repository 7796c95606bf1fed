// Asks the server again and again while a view is shown.

import { get } from "./api.js";
import { el, morphChildren } from "./dom.js";

const PERIOD_MS = 2000;

/**
 * Calls `refresh` repeatedly while the tab is visible. A call begins `periodMs` after the last one has ended, so calls
 * never overlap. Returns a function that stops the calls.
 */
export function poll(context, refresh, periodMs = PERIOD_MS) {
  const again = async () => {
    if (!document.hidden) {
      try {
        await refresh();
        if (context.isCurrent()) context.setLink("open", "✓ Connected");
      } catch (error) {
        if (context.isCurrent()) context.setLink("lost", `✗ ${error.message}`);
      }
    }
    if (context.isCurrent()) timer = setTimeout(again, periodMs);
  };
  let timer = setTimeout(again, periodMs);
  return () => clearTimeout(timer);
}

/**
 * Shows a view that `content` builds from the answer of the call `path`, and updates it. Returns a function
 * that stops the updates.
 */
export async function showPolled(context, title, path, content) {
  const place = el("div");
  const refresh = async () => {
    const answer = await get(path, context.signal);
    if (context.isCurrent()) morphChildren(place, content(answer));
  };
  await refresh();
  context.place(el("h1", {}, title), place);
  return poll(context, refresh);
}

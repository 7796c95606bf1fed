// The frame of the page: which view an address shows, and what the server has.

import { get, getText, hasToken } from "./api.js";
import { announce, el } from "./dom.js";
import { showLive } from "./live.js";
import { showNodes } from "./nodes.js";
import { save, showComparison, showResult, showResults } from "./results.js";

const main = document.getElementById("main");
const link = document.getElementById("link");

/** What to call before another view is shown. */
let leave = () => {};
let server = null;
/** Grows with each view, so that an answer that comes late is not shown in another view. */
let viewNumber = 0;

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// A browser sends no token with a link, so with a token the description is saved.
document.querySelector("#pages a[data-page=api]").addEventListener("click", async (event) => {
  if (!hasToken()) return;
  event.preventDefault();
  try {
    save("openapi.json", await getText("openapi.json"), "application/json");
  } catch (error) {
    setLink("lost", `✗ ${error.message}`);
  }
});

/** `#/runs/ID?a=b` as path segments and parameters. */
function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { segments, query: new URLSearchParams(query ?? "") };
}

/** Marks the link to the page that is shown. */
function markPage(page) {
  for (const anchor of document.querySelectorAll("#pages a")) {
    const isHere = anchor.dataset.page === page || (page === "compare" && anchor.dataset.page === "runs");
    if (isHere) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

function setLink(state, text) {
  link.className = `link-state link-${state}`;
  link.textContent = text;
}

function homePage() {
  return server.has.live ? "live" : "runs";
}

async function show() {
  leave();
  leave = () => {};
  viewNumber += 1;
  const view = viewNumber;
  let page = null;
  markPage(page);
  main.replaceChildren(el("p", { class: "muted", role: "status" }, "Loading…"));
  const context = { server, setLink, isCurrent: () => view === viewNumber, place: (...nodes) => view === viewNumber && main.replaceChildren(...nodes) };
  try {
    const { segments, query } = readAddress();
    page = segments[0] ?? homePage();
    markPage(page);
    const shown = await showPage(context, page, segments[1], query);
    // The user may have gone on while it was loading.
    if (view === viewNumber) leave = shown;
    else shown();
  } catch (error) {
    if (view === viewNumber) main.replaceChildren(problem(error));
  }
  if (view !== viewNumber) return;
  document.title = `${{ live: "Live", runs: "Results", compare: "Comparison", nodes: "Nodes" }[page] ?? "?"} – packetrig`;
}

/** Shows a page; the answer is what to call before the next one. */
async function showPage(context, page, id, query) {
  switch (page) {
    case "live": return showLive(context);
    case "runs": return id ? showResult(context, id) : showResults(context, query);
    case "compare": return showComparison(context, query);
    case "nodes": return showNodes(context);
    default: throw new Error(`there is no page called ${page}`);
  }
}

/** What failed, and what to do. */
function problem(error) {
  const lines = String(error.message ?? error).split("\n");
  const retry = el("button", { type: "button", onclick: () => begin() }, "Try again");
  return el("section", { class: "card", role: "alert" }, el("h2", {}, "This could not be loaded"), lines.map((line) => el("p", {}, line)), retry);
}

async function begin() {
  try {
    server = await get("state");
  } catch (error) {
    setLink("lost", "✗ No connection");
    main.replaceChildren(problem(error));
    return;
  }
  document.getElementById("version").textContent = server.version;
  for (const anchor of document.querySelectorAll("#pages a")) {
    const needs = { live: "live", runs: "results", nodes: "nodes" }[anchor.dataset.page];
    anchor.hidden = Boolean(needs) && !server.has[needs];
  }
  setLink("open", "✓ Connected");
  await show();
}

window.addEventListener("hashchange", () => {
  if (!server) return;
  show().then(() => {
    main.focus({ preventScroll: true });
    announce(document.title);
  });
});
begin();

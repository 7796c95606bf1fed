// The outer part of the page: it shows the view that the address names, and links only the views that the server has.

import { get, getText, hasToken } from "./api.js";
import { announce, el } from "./dom.js";
import { showCalibration } from "./calibration.js";
import { showFlows } from "./flows.js";
import { showLive } from "./live.js";
import { showLogs } from "./logs.js";
import { showNodes } from "./nodes.js";
import { showProbes } from "./probes.js";
import { save, showComparison, showResult, showResults } from "./results.js";
import { showTaps } from "./taps.js";

/** Pages by their name in the address. `needs`: the part of the server without which a page is not linked. */
const PAGES = {
  live: { needs: "live", title: "Live", show: showLive },
  runs: { needs: "results", title: "Results", show: (context, query, id) => (id ? showResult(context, id) : showResults(context, query)) },
  compare: { needs: "results", title: "Comparison", show: showComparison },
  probes: { needs: "results", title: "Probes", show: showProbes },
  nodes: { needs: "nodes", title: "Nodes", show: showNodes },
  flows: { needs: "flows", title: "Flows", show: showFlows },
  logs: { needs: "logs", title: "Logs", show: showLogs },
  taps: { needs: "taps", title: "Taps", show: showTaps },
  calibration: { needs: "calibration", title: "Calibration", show: showCalibration },
};

const main = document.getElementById("main");
const link = document.getElementById("link");

/** Closes the current view; called before another view is shown. */
let leave = () => {};
let server = null;
/** Aborted when another view is shown, so that the late answer of a call does not appear in that view. */
let view = new AbortController();

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// A browser sends no token when it follows a link. With a token, this script gets the API description and saves
// it as a file.
document.querySelector("#pages a[data-page=api]").addEventListener("click", async (event) => {
  if (!hasToken()) return;
  event.preventDefault();
  try {
    save("openapi.json", await getText("openapi.json"), "application/json");
  } catch (error) {
    setLink("lost", `✗ ${error.message}`);
  }
});

/** Splits an address such as `#/runs/ID?a=b` into path segments and parameters. */
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

/** The first page of `PAGES` that this server has. */
function homePage() {
  return Object.keys(PAGES).find((name) => server.has[PAGES[name].needs]) ?? "runs";
}

async function show() {
  leave();
  leave = () => {};
  view.abort();
  view = new AbortController();
  const { signal } = view;
  let page = null;
  markPage(page);
  main.replaceChildren(el("p", { class: "muted", role: "status" }, "Loading…"));
  const isCurrent = () => !signal.aborted;
  const context = { server, setLink, signal, isCurrent, place: (...nodes) => isCurrent() && main.replaceChildren(...nodes) };
  try {
    const { segments, query } = readAddress();
    page = segments[0] ?? homePage();
    markPage(page);
    if (!Object.hasOwn(PAGES, page)) throw new Error(`there is no page called ${page}`);
    // The function that closes this view.
    const shown = await PAGES[page].show(context, query, segments[1]);
    // The user may have opened another view while this one was loading.
    if (isCurrent()) leave = shown;
    else shown();
  } catch (error) {
    if (isCurrent()) main.replaceChildren(...problem(titleOf(page), error));
  }
  if (isCurrent()) document.title = `${titleOf(page)} – packetrig`;
}

const titleOf = (page) => (Object.hasOwn(PAGES, page) ? PAGES[page].title : "No such page");

/** A heading, a card with the cause of a failure, and a button to try again. */
function problem(title, error) {
  const lines = String(error.message ?? error).split("\n");
  const retry = el("button", { type: "button", onclick: () => begin() }, "Try again");
  return [el("h1", {}, title), el("section", { class: "card", role: "alert" }, el("h2", {}, "This page could not be loaded"), lines.map((line) => el("p", {}, line)), retry)];
}

async function begin() {
  try {
    server = await get("state");
  } catch (error) {
    setLink("lost", "✗ No connection");
    main.replaceChildren(...problem("No connection", error));
    return;
  }
  document.getElementById("version").textContent = server.version;
  for (const anchor of document.querySelectorAll("#pages a")) {
    const needs = PAGES[anchor.dataset.page]?.needs;
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

// Calls of the documented API (docs/book/page-api.md). The page uses nothing else, so a script can do all that the page does.

const BASE = "../api/v1/";
const KEY = "packetrig-token";
/**
 * Time without data after which a connection counts as lost. The server sends a heartbeat after 5 s without an event.
 */
const SILENCE_MS = 12000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

/** An error answer of the server. `errors` has all problems that the server listed. */
export class Refusal extends Error {
  constructor(status, errors) {
    super(errors.join("\n"));
    this.status = status;
    this.errors = errors;
  }
}

function headers(extra = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(KEY));
}

async function send(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { cache: "no-store", credentials: "omit", ...options, headers: headers(options.headers) });
    if (response.status !== 401) return response;
    await askForToken(Boolean(sessionStorage.getItem(KEY)));
  }
}

async function refusalOf(response) {
  const body = await response.json().catch(() => ({}));
  return new Refusal(response.status, body.errors ?? [`the server answered ${response.status}`]);
}

async function read(response) {
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

/** Gets the JSON answer of a call. An aborted `signal` cancels the call. */
export async function get(path, signal) {
  return read(await send(BASE + path, { signal }));
}

/** Gets the answer of a call as text, for downloads. */
export async function getText(path) {
  const response = await send(BASE + path);
  if (!response.ok) throw await refusalOf(response);
  return response.text();
}

export async function post(path, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return read(await send(BASE + path, options));
}

/** Replaces the configuration over the OTG API. An empty configuration ends the run and stores its result. */
export async function configure(configuration) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: configuration };
  return read(await send("../config", options));
}

let asking = null;

const dialog = document.getElementById("token-dialog");
// Nothing works without the token, so the dialog stays open. Browsers close a dialog at the second Escape even if the
// page forbids it, so it is then opened again.
dialog.addEventListener("cancel", (event) => event.preventDefault());
dialog.addEventListener("close", () => {
  if (asking && !dialog.open) dialog.showModal();
});

/** Asks the user for the token. The dialog is opened once, even if several calls wait for the token. */
function askForToken(wasWrong) {
  asking ??= new Promise((resolve) => {
    const input = document.getElementById("token");
    document.getElementById("token-problem").textContent = wasWrong ? "The server did not accept this token." : "";
    input.value = "";
    document.getElementById("token-form").addEventListener("submit", () => {
      sessionStorage.setItem(KEY, input.value.trim());
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/**
 * Follows the events of the run until `close` is called. It pauses while the tab is hidden, and connects again after a
 * lost connection. `handlers` has a function for each event, and the function `state`, which gets `connecting`, `open`,
 * `lost` or `refused`. After `refused` it connects again only when the tab was hidden and is shown again.
 */
export function follow(path, handlers) {
  const follower = new EventFollower(path, handlers);
  follower.start();
  return follower;
}

class EventFollower {
  constructor(path, handlers) {
    this.path = path;
    this.handlers = handlers;
    this.retryMs = FIRST_RETRY_MS;
    this.isClosed = false;
    this.onVisibility = () => (document.hidden ? this.pause() : this.start());
    document.addEventListener("visibilitychange", this.onVisibility);
  }

  /** Connects again with another path, such as one that asks for other rows of the stream table. */
  changePath(path) {
    this.path = path;
    this.pause();
    this.start();
  }

  close() {
    this.isClosed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.pause();
  }

  pause() {
    clearTimeout(this.retry);
    this.abort?.abort();
    this.abort = null;
  }

  start() {
    if (this.isClosed || this.abort || document.hidden) return;
    const abort = new AbortController();
    this.abort = abort;
    this.handlers.state("connecting");
    this.read(abort).catch((error) => {
      if (abort.signal.aborted && !abort.isSilent) return;
      this.lose(abort, error);
    });
  }

  lose(abort, error) {
    if (this.abort !== abort) return;
    this.abort = null;
    if (error instanceof Refusal && error.status !== 503) {
      this.handlers.state("refused", error);
      return;
    }
    this.handlers.state("lost", error);
    this.retry = setTimeout(() => this.start(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, LAST_RETRY_MS);
  }

  async read(abort) {
    const response = await send(BASE + this.path, { signal: abort.signal });
    if (!response.ok) throw await refusalOf(response);
    this.handlers.state("open");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const silence = setTimeout(() => {
        abort.isSilent = true;
        abort.abort();
      }, SILENCE_MS);
      const { value, done } = await reader.read();
      clearTimeout(silence);
      if (done) throw new Error("the server closed the connection");
      text = this.deliver(text + value);
      this.retryMs = FIRST_RETRY_MS;
    }
  }

  /** Calls the handler of each complete event in `text`. Returns the rest, an incomplete event. */
  deliver(text) {
    const blocks = text.split("\n\n");
    const rest = blocks.pop();
    for (const block of blocks) {
      let event = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      this.handlers[event]?.(JSON.parse(data || "null"));
    }
    return rest;
  }
}

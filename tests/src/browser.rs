//! A headless Chromium, driven by its DevTools protocol over two pipes: no port, no WebSocket, no driver. Tests of report pages and of
//! the live page use it.
//!
//! Messages are JSON, each with a zero byte behind it. The browser reads from descriptor 3 and writes to descriptor 4.

use crate::skip;
use rustix::fs::{CWD, Mode};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Names under which Debian has it, the smaller one first.
const PROGRAMS: [&str; 2] = ["chromium-headless-shell", "chromium"];
/// No answer takes so long, by far.
const LIMIT: Duration = Duration::from_secs(90);
/// Longest wait for anything that a correct page does at once, in milliseconds of the page.
const PATIENCE_MS: u32 = 60_000;
const UNEXPECTED: &str = "a test's browser works";

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// What the browser reported by itself since the page was opened.
    pub events: Vec<Value>,
    _place: TempDir,
}

impl Browser {
    /// `None` if there is no browser and that is accepted.
    pub fn start() -> Option<Self> {
        let is_there = |program: &&&str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        };
        let Some(program) = PROGRAMS.iter().find(is_there) else {
            skip::has_tool(PROGRAMS[0]);
            return None;
        };
        let place = tempfile::tempdir().expect(UNEXPECTED);
        let [to, from] = ["to", "from"].map(|name| place.path().join(name));
        for pipe in [&to, &from] {
            rustix::fs::mkfifoat(CWD, pipe, Mode::RUSR | Mode::WUSR).expect(UNEXPECTED);
        }
        let child = spawn(program, place.path());
        // Opened for both directions, so that opening waits for nobody.
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect(UNEXPECTED);
        let reader = open(&from);
        let mut browser = Self {
            child,
            to: open(&to),
            from: listen(reader),
            session: String::new(),
            next: 0,
            events: Vec::new(),
            _place: place,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let parameters = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call("Target.attachToTarget", parameters);
        session["sessionId"].as_str().expect("a session").clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network", "DOM"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.call("Performance.enable", json!({"timeDomain": "threadTicks"}));
    }

    /// Calls a method and waits for its result. Panics if the browser refuses.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Calls a method and waits for its answer, which may be an error.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect(UNEXPECTED);
        loop {
            let answer = self.receive(method);
            if answer["id"] == self.next {
                return answer;
            }
            self.events.push(answer);
        }
    }

    fn receive(&self, what: &str) -> Value {
        self.from.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("the browser does not answer {what}"))
    }

    fn await_event(&mut self, name: &str) {
        while !self.events.iter().any(|event| event["method"] == name) {
            let event = self.receive(name);
            self.events.push(event);
        }
    }

    /// Opens a file in a window of this width.
    pub fn open(&mut self, file: &Path, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        self.await_event("Page.loadEventFired");
    }

    /// The system's wish for dark or light pages.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// What an expression comes to; promises are awaited.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Opens an address and waits until it is loaded.
    pub fn open_address(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": address }));
        self.await_true("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Loads the page anew.
    pub fn reload(&mut self) {
        self.evaluate("globalThis.isOld = true");
        self.call("Page.reload", json!({}));
        self.await_true("!globalThis.isOld && document.readyState === 'complete'");
    }

    /// The text of the element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let found =
            self.evaluate(&format!("document.querySelector({})?.textContent ?? null", json!(selector)));
        found.as_str().unwrap_or_else(|| panic!("there is no {selector}")).to_owned()
    }

    /// Waits until an expression is true in the page. It may also be asked while the page is being loaded.
    pub fn await_true(&mut self, condition: &str) {
        let looking = format!(
            "new Promise((resolve) => {{
                const end = performance.now() + {PATIENCE_MS};
                const look = () => {{
                    let holds = false;
                    try {{ holds = Boolean({condition}); }} catch {{ holds = false; }}
                    if (holds || performance.now() > end) resolve(holds);
                    else setTimeout(look, 30);
                }};
                look();
            }})"
        );
        let parameters = json!({ "expression": looking, "awaitPromise": true, "returnByValue": true });
        for _ in 0..20 {
            let answer = self.ask("Runtime.evaluate", parameters.clone());
            // A page that goes away takes its promise with it: the next page is asked.
            if answer["error"].is_null() {
                let holds = answer["result"]["result"]["value"] == true;
                assert!(holds, "never: {condition}\n{}\n{:?}", self.page_text(), self.complaints());
                return;
            }
        }
        panic!("the page was loaded again and again: {condition}");
    }

    fn page_text(&mut self) -> String {
        let text = self.evaluate("document.body?.innerText ?? ''");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the element that a selector finds, as a user of the keyboard does.
    pub fn click(&mut self, selector: &str) {
        let clicked = self.evaluate(&format!(
            "(() => {{ const node = document.querySelector({}); node?.focus(); node?.click(); return Boolean(node) && !node.disabled; }})()",
            json!(selector)
        ));
        assert_eq!(clicked, true, "there is no {selector} to click");
    }

    /// Chooses a file in a file input.
    pub fn choose_file(&mut self, selector: &str, file: &Path) {
        let document = self.call("DOM.getDocument", json!({}));
        let node = self
            .call("DOM.querySelector", json!({ "nodeId": document["root"]["nodeId"], "selector": selector }));
        self.call("DOM.setFileInputFiles", json!({ "files": [file], "nodeId": node["nodeId"] }));
    }

    /// Width of the window in pixels.
    pub fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Exceptions, errors in the console, and what the content security policy refused.
    pub fn complaints(&self) -> Vec<String> {
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_complaint).map(|event| event["params"].to_string()).collect()
    }

    /// Addresses that the page has requested.
    pub fn requested(&self) -> Vec<String> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// What axe-core finds on the page as it is, with all details open: rule and element. `axe` is its source.
    pub fn axe_violations(&mut self, axe: &str) -> Vec<String> {
        self.evaluate(axe);
        self.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
        let found = self.evaluate(
            "axe.run().then(({ violations }) => violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`))",
        );
        serde_json::from_value(found).expect("a list of texts")
    }

    /// A picture of the whole page as base64 of a PNG.
    pub fn photograph(&mut self) -> String {
        let picture = self.call("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
        picture["data"].as_str().expect(UNEXPECTED).to_owned()
    }

    /// Seconds of processor time that the page's thread has worked.
    pub fn worked(&mut self) -> f64 {
        let metrics = self.call("Performance.getMetrics", json!({}));
        let all = metrics["metrics"].as_array().expect(UNEXPECTED);
        all.iter().find(|metric| metric["name"] == "TaskDuration").expect(UNEXPECTED)["value"]
            .as_f64()
            .expect(UNEXPECTED)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It leads a group of its own: the browser has several processes.
        drop(packetrig_sys::child::kill_group(&self.child));
        drop(self.child.wait());
    }
}

fn spawn(program: &str, place: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 3<to 4>from", "sh", program]).current_dir(place);
    command.args(["--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--no-first-run", "--disable-extensions", "--disable-background-networking"]);
    command.arg(format!("--user-data-dir={}", place.join("profile").display()));
    if rustix::process::geteuid().is_root() {
        // Chromium refuses to sandbox as root.
        command.arg("--no-sandbox");
    }
    packetrig_sys::child::start_in_own_group(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is a shell")
}

fn listen(from: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for message in BufReader::new(from).split(0) {
            let Ok(message) = message else { return };
            let value = serde_json::from_slice(&message).unwrap_or(Value::Null);
            if sender.send(value).is_err() {
                return;
            }
        }
    });
    receiver
}

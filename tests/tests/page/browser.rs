//! A headless Chromium, driven by its DevTools protocol over two pipes: no port, no WebSocket, no driver.
//!
//! Messages are JSON, each with a zero byte behind it. The browser reads from descriptor 3 and writes to descriptor 4.

use packetrig_tests::skip;
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
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    next: u64,
    /// What the browser reported by itself since the page was opened.
    pub(crate) events: Vec<Value>,
    _place: TempDir,
}

impl Browser {
    /// `None` if there is no browser and that is accepted.
    pub(crate) fn start() -> Option<Self> {
        let is_there = |program: &&&str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        };
        let Some(program) = PROGRAMS.iter().find(is_there) else {
            skip::has_tool(PROGRAMS[0]);
            return None;
        };
        let place = tempfile::tempdir().unwrap();
        let [to, from] = ["to", "from"].map(|name| place.path().join(name));
        for pipe in [&to, &from] {
            rustix::fs::mkfifoat(CWD, pipe, Mode::RUSR | Mode::WUSR).unwrap();
        }
        let child = spawn(program, place.path());
        // Opened for both directions, so that opening waits for nobody.
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).unwrap();
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
        self.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.call("Performance.enable", json!({"timeDomain": "threadTicks"}));
    }

    /// Calls a method and waits for its result. Panics if the browser refuses.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.receive(method);
            if answer["id"] != self.next {
                self.events.push(answer);
                continue;
            }
            assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
            return answer["result"].clone();
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
    pub(crate) fn open(&mut self, file: &Path, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        self.await_event("Page.loadEventFired");
    }

    /// The system's wish for dark or light pages.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// What an expression comes to; promises are awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// A picture of the whole page as base64 of a PNG.
    pub(crate) fn photograph(&mut self) -> String {
        let picture = self.call("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
        picture["data"].as_str().unwrap().to_owned()
    }

    /// Seconds of processor time that the page's thread has worked.
    pub(crate) fn worked(&mut self) -> f64 {
        let metrics = self.call("Performance.getMetrics", json!({}));
        let all = metrics["metrics"].as_array().unwrap();
        all.iter().find(|metric| metric["name"] == "TaskDuration").unwrap()["value"].as_f64().unwrap()
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
    packetrig_sys::child::lead_own_group(&mut command);
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

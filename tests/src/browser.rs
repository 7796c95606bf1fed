//! A headless Chromium, driven over its debugging pipe: commands and events are JSON, each ended by a zero byte. It needs no other
//! program and no socket.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Longest wait for anything that a correct page does at once, in milliseconds of the page.
const PATIENCE_MS: u32 = 60_000;
/// Names under which distributions install it; the first one that exists is taken.
const PROGRAMS: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];

/// The browser that is installed.
pub fn program() -> Option<&'static str> {
    let path = std::env::var("PATH").unwrap_or_default();
    PROGRAMS
        .into_iter()
        .find(|name| path.split(':').any(|directory| Path::new(directory).join(name).is_file()))
}

/// A browser with one tab.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    /// The tab, once there is one.
    session: Option<String>,
    number: u64,
    /// Events of the tab, oldest first.
    events: Vec<Value>,
    directory: TempDir,
}

impl Browser {
    /// Starts the browser `program`.
    pub fn start(program: &str) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a profile");
        let profile = directory.path().join("profile").display().to_string();
        let errors = File::create(directory.path().join("stderr")).expect("there is room for its messages");
        // The pipe is at descriptors 3 and 4. As root it does not start without --no-sandbox; it shows only the page under test.
        let command = format!(
            "exec {program} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --user-data-dir=\"$0\" --remote-debugging-pipe 3<&0 4>&1 0</dev/null 1>/dev/null"
        );
        let mut child = Command::new("sh")
            .args(["-c", &command, &profile])
            .env("HOME", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("there is a shell");
        let commands = File::from(std::os::fd::OwnedFd::from(child.stdin.take().expect("it is piped")));
        let answers = File::from(std::os::fd::OwnedFd::from(child.stdout.take().expect("it is piped")));
        let answers = BufReader::new(answers);
        let mut browser =
            Self { child, commands, answers, session: None, number: 0, events: Vec::new(), directory };
        browser.open_tab();
        browser
    }

    fn open_tab(&mut self) {
        let tab = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            self.call("Target.attachToTarget", json!({ "targetId": tab["targetId"], "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "DOM"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Performs a command of the debugging protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// The answer to a command, which may be an error.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut command = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("the browser reads its pipe");
        loop {
            let message = self.read();
            if message["id"] == self.number {
                return message;
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).expect("the browser's pipe can be read");
        if bytes.pop() != Some(0) {
            let said = std::fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default();
            panic!("the browser has ended: {said}");
        }
        serde_json::from_slice(&bytes).expect("the browser answers in JSON")
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({ "url": address }));
        self.await_true("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Loads the page anew.
    pub fn reload(&mut self) {
        self.evaluate("globalThis.isOld = true");
        self.call("Page.reload", json!({}));
        self.await_true("!globalThis.isOld && document.readyState === 'complete'");
    }

    /// The value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let evaluated = self.call("Runtime.evaluate", parameters);
        assert!(evaluated["exceptionDetails"].is_null(), "{expression}: {}", evaluated["exceptionDetails"]);
        evaluated["result"]["value"].clone()
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

    /// Width of the window in pixels, and whether the user prefers dark.
    pub fn resize(&mut self, width: u32, is_dark: bool) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
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
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers end with it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

//! Reports a panic to the user as a bug: with a short message instead of a backtrace, and with an exit code of its own.

use crate::exit::CommandExit;
use crate::output::print_remark;
use crate::run::ProgramName;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

/// Runs `command`. A panic in it, or in a worker that it joins, becomes [`CommandExit::Bug`]. Guards are dropped during the panic,
/// so interfaces are restored.
pub(crate) fn run_and_report_panic(command: impl FnOnce() -> CommandExit) -> CommandExit {
    // Unwind safety does not matter: after a panic, no value of the command is used.
    catch_unwind(AssertUnwindSafe(command)).unwrap_or(CommandExit::Bug)
}

/// Makes a panic of any thread print a short message instead of Rust's own.
pub(crate) fn install_panic_hook(program: ProgramName) {
    std::panic::set_hook(Box::new(move |info| print_bug_report(program, info)));
}

fn print_bug_report(program: ProgramName, info: &PanicHookInfo<'_>) {
    let what = info.payload_as_str().unwrap_or("no message");
    let place =
        info.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    let ProgramName { name, version, after_bug } = program;
    print_remark(format_args!(
        "bug: {name} {version} failed an internal check{place}: {what}\n  \
         please report this message to the developers{after_bug}"
    ));
    // The backtrace is for developers; a user's report only needs the place and the version.
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        print_remark(std::backtrace::Backtrace::force_capture());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_yields_bug_exit_code_and_drops_guards() {
        struct PanicGuard<'a>(&'a std::cell::Cell<bool>);
        impl Drop for PanicGuard<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let restored = std::cell::Cell::new(false);
        let exit = run_and_report_panic(|| {
            let _guard = PanicGuard(&restored);
            panic!("on purpose");
        });
        assert_eq!(exit, CommandExit::Bug);
        assert!(restored.get());
        assert_eq!(run_and_report_panic(|| CommandExit::Busy), CommandExit::Busy);
    }
}

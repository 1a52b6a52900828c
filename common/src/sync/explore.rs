//! Running a model under every order of its threads.
//!
//! Always true: how many executions that were is said, so that a model which explores nothing shows.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::model::Builder;

/// Runs `model` under every order of its threads. With `preemptions`, only under orders that take a thread off the
/// processor so often while it could go on, and not quite all of these: every order may be too many, and what is wrong
/// nearly always shows with two or three (Musuvathi and Qadeer, PLDI 2007).
///
/// # Panics
/// If `model` does, in any execution. They come in the same order each time.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let (executions, explored) = run(preemptions, model);
    let name = std::thread::current().name().unwrap_or("a model").to_owned();
    let bound = preemptions.map_or(String::new(), |bound| format!(" with up to {bound} preemptions"));
    let said = match &explored {
        Ok(()) => format!("model {name}: {executions} executions{bound}\n"),
        Err(_) => format!("model {name}: fails in execution {executions}{bound}\n"),
    };
    // Past the test harness, which shows what a test prints only if it fails.
    let _ = std::io::stderr().write_all(said.as_bytes());
    if let Err(panic) = explored {
        resume_unwind(panic);
    }
}

/// The same without a word: how many executions there were, and how the last one ended.
pub(super) fn run(
    preemptions: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) -> (u64, std::thread::Result<()>) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    let counted = move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    };
    let explored = catch_unwind(AssertUnwindSafe(|| builder.check(counted)));
    (executions.load(Ordering::Relaxed), explored)
}

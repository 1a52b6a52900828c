//! Tells the program which commit it was built from, for its reports.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The log of HEAD changes with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-env-changed=SIDESTEP_COMMIT");
    let commit = std::env::var("SIDESTEP_COMMIT")
        .ok()
        .or_else(|| git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=SIDESTEP_COMMIT={commit}");
}

//! The program as scripts see it: what it prints where, and the exit code.

use std::process::{Command, Output};

fn kvbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvbench"))
        .args(arguments)
        .env_remove("SIDESTEP_ENDPOINT")
        .env_remove("SIDESTEP_ADMIN")
        .output()
        .expect("the program was built for this test")
}

#[test]
fn help_succeeds_and_mistakes_are_usage_errors() {
    assert_eq!(kvbench(&["--help"]).status.code(), Some(0));
    for arguments in [
        &[][..],
        &["fly"],
        &["run", "--threads", "0", "--records", "1", "--ops", "1"],
        &["run", "--records", "1", "--ops", "1", "-p", "requestdistribution=pareto"],
        &["replay", "--format", "cachelib", "/no/such/file"],
    ] {
        let output = kvbench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_store_that_is_not_there_is_unreachable() {
    // Port 1 is reserved and closed.
    let output =
        kvbench(&["load", "-e", "sidestep://127.0.0.1:1", "--records", "1", "--quiet", "--format", "json"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(output.stdout.is_empty() && error.contains("127.0.0.1:1"), "{error}");
}
